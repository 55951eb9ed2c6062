// Package utp is the connection layer of Unity Transport 2.x, protocol version 1: connections over
// datagrams, and pipelines over connections. It is compatible by layout and has not been tried
// against a Unity peer. UTP 1.x is another protocol.
//
// # An endpoint and its tick
//
// An [Endpoint] does no I/O, starts no goroutine and reads no clock:
//
//	e.Advance(now)                     set the time of this tick
//	e.Receive(from, datagram) …        process received datagrams
//	e.Update()                         end connections that timed out
//	for ev, ok := e.NextEvent(); ok; … read events
//	e.Connect, e.Send, e.Disconnect …  the game's actions
//	e.Flush()                          queue acknowledgements, retransmissions, heartbeats
//	for to, b, ok := e.Next(); ok; …   send the queued datagrams
//
// The same calls with the same bytes and times give the same datagrams. In
// steady state nothing allocates.
//
// # Connections
//
//	request →                     kind 1 of the handshake, with a random token
//	        ← accept              kind 2, the same token
//	data, heartbeat ↔             9 bytes of header: kind and token
//	disconnect ↔                  9 bytes; no reason, no answer
//
// [Packet] has the layouts. The token alone authenticates a sender: an attacker that reads the
// traffic can take the connection over.
//
//	StateConnecting  ─ accept, or any message ─→ StateEstablished
//	StateHalfOpen    ─ any message but a request ─→ StateEstablished, not validated yet
//	any state        ─ disconnect, timeout ─→ gone
//
// This package differs from UTP in these points, with which UTP's peers are compatible:
//
//   - an accept precedes every data packet until the client's first message
//   - a disconnect leaves three times, in successive flushes
//   - tokens come from crypto/rand
//   - the number of connections is limited, and more tightly the number of those
//     whose client is unvalidated; such a client gets three bytes for each of its own
//   - a client that has sent nothing since its request gets no heartbeats
//   - a client above MaxConnections is refused by a disconnect
//   - only an established connection follows its peer to another address
//   - a late copy of a request does not open a closed connection again
//
// # Address validation
//
// A server sends a peer no more than three times the bytes that it has received from it until
// the peer has proven that it receives what is sent to its address (RFC 9000, section 8).
// Requests, heartbeats and data are no proof. What exceeds the limit is withheld as if lost.
//
// With [Config].ValidateAddresses, which needs this package on both sides, the proof is a
// cookie of 8 bytes in the payload of accept and request:
//
//	request →                             nothing is kept
//	        ← accept, cookie              a keyed hash of address, token and time
//	request, cookie → data →              now the connection exists
//
// The client returns the cookie ahead of its first data, so this takes no further round trip, and
// again until the server has sent something else. A peer that moves to another address must prove
// it as well.
//
// Peers of Unity cannot return a cookie. Their proof is the acknowledgement of a reliable
// packet, or a call of [Endpoint.Admit] by a layer that has a better one. This remains:
//
//   - Sequences begin at 0, so a blind attacker that knows when the server sends its first
//     reliable packet can forge the acknowledgement, and end the limit for the address that
//     it has forged.
//   - A peer that moves is not unvalidated again.
//   - Each request takes a place. If none is left, the connection that is unvalidated for
//     longest makes room, so n forged requests per second leave a client MaxHalfOpen/n
//     seconds: 1.3 s at 200 per second with 256 places, and only 51 ms at 5,000.
//
// # Pipelines
//
// A payload passes the stages of its [Pipeline] in order, and each puts a header in front, so that
// the last stage's header comes first. Nothing on the wire says which stages those are.
//
// # Limitations
//
// MTU discovery is answered and never begun. Windows above 64, DTLS and WebSocket are missing. There
// is no congestion control, as UTP has none.
package utp
