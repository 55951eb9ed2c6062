// Package demo plays one match through a relay on this machine and counts.
//
// It owns the scripted session of ferry demo: a relay as ferry dev runs it, on
// loopback with free ports; a host and its players, who ask the real API over
// HTTP and speak the real protocol over UDP; and the verdict. Nothing is
// short-cut, so that a match that works here works.
//
// Each player and its host exchange datagrams for a while: either side sends a
// numbered one 30 times a second, and the host returns each one of the player's
// at once. The way from player to relay to host and back is the round-trip time
// that is reported. A datagram counts when it arrives for the first time and
// says what it should.
package demo
