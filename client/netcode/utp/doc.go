// Package utp is the connection layer of Unity Transport 2.x, protocol version
// 1: connections over datagrams, and pipelines over connections. It owns the
// wire that a game shares with its peers, as package proto owns the one that
// it shares with the relay. What a game says over it is the business of the
// layers above.
//
// It is compatible with UTP 2.x by layout and has not been tried against a
// Unity peer. UTP 1.x is another protocol.
//
// # An endpoint and its tick
//
// An [Endpoint] does no I/O, starts no goroutine and reads no clock. The caller
// drives it, once per tick:
//
//	e.Advance(now)                     the time of this tick
//	e.Receive(from, datagram) …        what came in
//	e.Update()                         what has waited too long
//	for ev, ok := e.NextEvent(); ok; … what it means
//	e.Connect, e.Send, e.Disconnect …  what the game wants
//	e.Flush()                          acknowledgements, repetitions, heartbeats
//	for d, ok := e.Next(); ok; …       what has to go out
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
// All numbers are little-endian; the layouts are at the types. The token is
// all that names a connection, and all that proves who sends: whoever reads
// the wire can take it over.
//
//	StateConnecting  ─ accept, or any message ─→ StateEstablished
//	StateHalfOpen    ─ any message but a request ─→ StateEstablished
//	any state        ─ disconnect, timeout ─→ gone
//
// Where this package does other than UTP, both of whose ends are then still
// satisfied:
//
//   - an accept goes ahead of every data packet until the client is heard
//   - a disconnect leaves three times, in successive flushes
//   - tokens come from crypto/rand
//   - connections are bounded, and more tightly those whose client was not
//     heard since its request; such a client gets neither heartbeats nor more
//     than 16 data packets per request
//   - a client above MaxConnections is refused by a disconnect
//   - only an established connection follows its peer to another address
//   - a late copy of a request does not open a closed connection again
//
// # Pipelines
//
// A payload passes the stages of its [Pipeline] in order, and each puts a
// header in front, so that the last stage's header comes first on the wire.
// Nothing there says which stages those are: [NetcodeForEntities] and
// [NetcodeForGameObjects] list them as Unity's packages do.
//
// # Limitations
//
// MTU discovery is answered and never begun. Windows above 64, DTLS and
// WebSocket are missing. There is no congestion control, as UTP has none.
package utp
