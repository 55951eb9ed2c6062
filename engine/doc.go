// Package engine is the data plane of the relay, and the package to embed: it
// receives datagrams, decides about each one, and forwards it.
//
//	srv, err := engine.New(engine.Config{Listen: addrs}, engine.Identity{Master: key, Relay: id})
//	go srv.Run(ctx)                                               // until ctx ends
//	<-srv.Ready()
//	host, err := srv.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: tenant}, MaxConnections: 4})
//	joiner, err := srv.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: tenant}, Host: host.ID})
//	// Send id, key, connection data and endpoints to the players: they bind and play.
//
// [alloc.Service] and package httpapi add the Relay Allocations API: docs/embedding.md.
//
// Workers run each batch to completion (recvmmsg, one decision per datagram,
// sendmmsg), each on a thread and a socket of its own. They decide RELAY and PING
// without a lock, an allocation or a copy. They check BIND, CONNECT_REQUEST,
// DISCONNECT and CLOSE, and pass them through bounded rings to the control
// goroutine, the single writer of all state, which also owns the timer wheel.
//
// Workers read sequence-locked records. Epoch-based reclamation, as in RCU, tells
// control when no worker acts on an old state any more. Path validation limits the
// bytes to an endpoint whose address may be forged. No lock is held while a hook runs.
//
// The rules of the protocol are in rules.go; ownership and memory ordering in
// docs/architecture.md; what was measured in docs/research.
package engine
