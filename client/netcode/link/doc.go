// Package link sends and receives datagrams for a tick loop: a [Link] is an
// endpoint that never blocks. These functions open one:
//
//	OpenUDP       a socket, read and written in batches
//	OpenRelay     a host or joiner behind a Ferry relay
//	OpenDirect    the same with direct paths to peers that can be reached
//	Network.Open  a node of a network in memory
//	Join          several links as one, for a server
//	Simulate      a bad network in front of any of them, for tests
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
// that the last datagrams of a peer are read before the event Left. Only a
// relay, and a network in memory that simulates one, has events about peers; UDP
// has none.
//
// # Direct paths
//
// A link of [OpenDirect] is a relay's link with a socket beside it. Peers keep their addresses on
// the relay. A datagram to a peer takes the direct path while there is one, without a byte more,
// and the relay otherwise:
//
//	offer ↔             over the relay: addresses, an id and a random key of 128 bits
//	challenge →         to each offered address, and to those that challenges come from
//	        ← response  the path is validated, as in RFC 9000, section 8.2
//	datagrams ↔         once each side accepts the other's address
//
// A challenge and its response have 38 bytes each, 16 of them an HMAC with the key and the
// addresses that the relay has authenticated. Datagrams are accepted from exactly the validated
// address and port. A path is challenged every 400 ms. Datagrams take the relay again as soon as
// the other side challenges from another address, and within 2.2 s of the last response; a tick
// should therefore be below 100 ms. Attempts for a path that is missing begin after 10 s, then 20,
// 40 and 60 s. The relay carries an offer every 5 s, so that it does not take a peer for silent.
//
// A peer may offer an address that is not its own. In one attempt it causes at most 5 challenges
// to each of 4 addresses that it offers and 2 that challenges come from, and all peers together
// cause at most 512 in a second. Attempts that a peer causes are 5 s apart at first, later 30 s.
// At most 64 challenges of a peer are answered in a second. Unspecified, multicast, broadcast and
// link-local addresses, port 0 and the relay are not challenged, nor is loopback unless the socket
// is bound there. A peer takes 3 KB of memory.
//
// Direct paths are off unless a game opens this link, since they have a price: players learn each
// other's IP addresses, which an attacker can then flood, and nothing is encrypted. As over plain
// UDP, an attacker that forges the address and port of a peer can insert datagrams.
//
// Both sides need this link; with a peer that has none, all goes over the relay. There is no STUN
// server: one of two players behind routers must be reachable, in a common network, over IPv6, by
// a forwarded port, or at an address that the game has found out and offers. A path that lets
// small datagrams pass and large ones not is used all the same.
//
// # Ownership
//
// A Link belongs to one goroutine. Buffers belong to the caller: Send is done
// with its datagram when it returns, Receive copies into the buffer it is given.
// Once a link runs steadily, no call allocates; outside Linux a UDP link does,
// see package sock. Sockets and networks in memory have no goroutine; a relay's link has the two
// of its client.Session, from OpenRelay to Close, and one while it dials.
//
// Queues are bounded, and what does not fit is lost and counted: see [Stats].
// Nothing here panics, on any input.
package link
