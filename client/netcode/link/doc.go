// Package link sends and receives datagrams for a tick loop: a [Link] is an
// endpoint that never blocks. These functions open one:
//
//	OpenUDP       a socket, read and written in batches
//	OpenRelay     a host or joiner behind a Ferry relay
//	Network.Open  a node of a network in memory
//
// # A tick
//
//	l.Advance(now)
//	for e := l.Receive(buf); e.Kind != link.Nothing; e = l.Receive(buf) {
//		...
//	}
//	l.Send(to, packet)
//	l.Flush()
//
// What arrives and what happens to peers comes out of Receive in one order. Only
// a relay, and a network in memory that simulates one, has events about peers.
//
// # Ownership
//
// A Link belongs to one goroutine, buffers to the caller. In steady state no call allocates;
// outside Linux a UDP link does, see package sock. Sockets and networks in memory have no
// goroutine; a relay's link has the two of its client.Session, and one while it dials.
//
// Queues are bounded, and what does not fit is lost and counted: see [Stats].
// Nothing here panics, on any input.
package link
