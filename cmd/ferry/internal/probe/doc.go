// Package probe is the command of the same name: one side of a game without the
// game, which listens or connects, directly or through a relay, and tells what
// happens. It owns what such a side says and prints; links, transport and
// simulator are those of package netcode.
package probe
