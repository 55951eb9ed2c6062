// Package app puts the parts of Ferry together in one process: the relay with its
// ways in, the Allocations service with its store, the HTTP API, which shares its
// port with the WebSocket, and the admin pages. It is
// what ferry serve, ferry dev and ferry demo run, so that none of them takes a
// way of its own.
//
// It owns what belongs to the whole: what a configuration must have before
// anything is opened ([Check]), how players are told to reach the relay, the
// order of the end, and when the process is ready, which it is once the relay
// has answered a datagram through its own socket. So does what watches over it:
// the state file for the next start, the memory, the UDP port, and the drain,
// at whose end Run returns.
//
// The end goes from outside in: the API answers the calls that it has taken and
// takes no more, then the relay stops and the WebSockets with it, then the admin
// pages. Nothing of it is left when Run returns.
package app
