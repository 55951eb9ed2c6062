// Package utp is the connection layer of Unity Transport 2.x, protocol version
// 1: connections over datagrams, and pipelines over connections. It defines the
// wire format between a game and its peers; package proto defines the format
// between a game and the relay.
//
// It is compatible with UTP 2.x by layout and has not been tried against a
// Unity peer. UTP 1.x is another protocol.
//
// # An endpoint and its tick
//
// An [Endpoint] does no I/O, starts no goroutine and reads no clock. The caller
// drives it, once per tick:
//
//	e.Advance(now)                     set the time of this tick
//	e.Receive(from, datagram) …        process received datagrams
//	e.Update()                         end connections that timed out
//	for ev, ok := e.NextEvent(); ok; … read events
//	e.Connect, e.Send, e.Disconnect …  the game's actions
//	e.Flush()                          queue acknowledgements, retransmissions, heartbeats
//	for d, ok := e.Next(); ok; …       send the queued datagrams
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
// All numbers are little-endian; the layouts are at the types. The token alone
// identifies a connection and authenticates its sender: an attacker that reads
// the traffic can take the connection over.
//
//	StateConnecting  ─ accept, or any message ─→ StateEstablished
//	StateHalfOpen    ─ any message but a request ─→ StateEstablished
//	any state        ─ disconnect, timeout ─→ gone
//
// This package differs from UTP in these points, with which UTP's peers are
// compatible:
//
//   - an accept precedes every data packet until the client's first message
//   - a disconnect leaves three times, in successive flushes
//   - tokens come from crypto/rand
//   - the number of connections is limited, and more tightly the number of
//     half-open ones, whose client has sent nothing since its request; such a
//     client gets no heartbeats and at most 16 data packets per request
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
