// Package demo plays one match through a relay on this machine and counts.
//
// It runs the session of ferry demo: a relay as ferry dev runs it, of package relay, on loopback with free
// ports; a host and its players, which call the real API over HTTP and use the real
// protocol over UDP; and the result. Nothing is simulated.
//
// Each player and its host exchange datagrams for a while: either side sends a
// numbered one 30 times a second, and the host returns each one of the player's
// at once. The reported round-trip time is that from player to relay to host and
// back. A datagram counts when it arrives for the first time with the right content.
package demo
