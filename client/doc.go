// Package client is what a player's machine runs: it binds an allocation to a
// relay, keeps it alive, links a joiner with its host, and carries datagrams.
//
// A [Ticket] comes from the Allocations API ([Reserve], [Redeem], [TicketFrom]).
// [New] makes a [Session] of it, [Session.Run] does the work, and the calls of
// a session may then come from any goroutine:
//
//	host:   Bind, then Accept for each peer, or PacketConn
//	joiner: Bind, then Connect, or Connect and PacketConn
//
// A player that has a join code:
//
//	relay := &api.Client{BaseURL: "http://127.0.0.1:7777"}
//	ticket, err := client.Redeem(ctx, relay, "HPR9L7")
//	session, err := client.New(client.Config{Ticket: ticket})
//	go session.Run(ctx)
//	host, err := session.Connect(ctx) // a net.Conn
//	host.Write([]byte("hello"))
//
// A [Peer] is a net.Conn that keeps the bounds of datagrams, and
// [Session.PacketConn] is a net.PacketConn whose addresses are allocation ids,
// so that code written for UDP, such as a QUIC library, runs through the relay
// as it is. A datagram is handed out once, to whichever of Read and ReadFrom
// asks first: a session uses one of the two.
//
// Like UDP, a session loses datagrams rather than wait: one that the machine
// cannot send now is counted and gone, and so is the newest one when a queue
// is full.
//
// Rules of the wire are those of the relay's protocol reference; where a rule
// is this package's own, the comment at the place says why.
package client
