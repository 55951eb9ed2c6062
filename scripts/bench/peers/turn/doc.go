// Package turn teaches the load generator of package bench to play through a
// TURN server (RFC 8656): each player allocates a relayed address and binds a
// channel to its host, and the host is a plain peer without TURN.
//
// It implements the necessary part of STUN (RFC 8489), over UDP and IPv4,
// with long-term credentials. It never refreshes: what it sets up has to
// outlast the run, see [Lifetime].
package turn
