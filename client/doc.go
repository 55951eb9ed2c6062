// Package client is the player's side of a relay: it binds an allocation, keeps it
// alive, connects a joiner to its host, and carries datagrams between them.
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
// A [Ticket] comes from the Allocations API ([Reserve], [Redeem], [TicketFrom]).
// [New] opens a [Session] with it, and [Session.Run] runs the protocol. While Run
// runs, all methods of a session may be called from any goroutine:
//
//	host:   Bind, then Accept for each peer, or PacketConn
//	joiner: Bind, then Connect, or Connect and PacketConn
//
// A [Peer] is a net.Conn that preserves the boundaries of datagrams.
// [Session.PacketConn] is a net.PacketConn whose addresses are allocation ids, as
// for a QUIC library. Use either Peer.Read or ReadFrom in one session: each
// datagram is delivered once.
//
// The relay drops a link when its host ends, and some relays one that nothing used for 10 s. The
// session then makes the link again, or Read and Write fail with [ErrLinkLost] and the reason; then
// [Migrate] may help. While the relay itself is silent, the session binds again.
//
// Like UDP, a session drops datagrams instead of blocking: those that the system
// refuses to send, and new ones when a receive queue is full. [Stats] counts both.
package client
