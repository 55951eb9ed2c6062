// Package benchrig has the sockets and endpoints of the load generator and the
// dialects that make them ready on a relay.
//
// A [Plan] lists endpoints and flows. A [Dialect] speaks the handshakes of one
// kind of relay: [Ferry], [TURN], [Swap] for relays such as [NullRelay] that compute
// the destination from the source address, and [Direct] without a relay. It returns a
// [Rig], which package bench then loads and measures.
package benchrig
