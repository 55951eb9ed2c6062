// Package link owns the ways by which a tick loop moves datagrams: a [Link] is
// an endpoint that sends and receives without ever waiting. There are three:
//
//	UDP    a socket, read and written in batches       OpenUDP
//	Node   a node of a network in memory               NewNetwork, Network.Open
//	Relay  a host or joiner behind a Ferry relay       OpenRelay
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
// What arrives and what happens to peers comes out of Receive in one order, so
// that the last words of a peer are read before the news that it left. Only a
// relay, and a network in memory that plays one, knows about peers; over UDP
// silence is all there is.
//
// # Ownership
//
// A Link belongs to one goroutine. Buffers belong to the caller: Send is done
// with its datagram when it returns, Receive copies into the buffer it is given.
// Once a link runs steadily, no call allocates; outside Linux a UDP link does,
// see package sock. UDP and memory have no goroutine; a Relay has the two of its
// client.Session, from OpenRelay to Close, and one while it dials.
//
// Queues are bounded, and what does not fit is lost and counted: see [Stats].
// Nothing here panics, whatever arrives.
package link
