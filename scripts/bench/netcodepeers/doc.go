// Command netcodepeers sets package client/netcode beside ENet: what a player
// costs a server in processor time per tick, and a connection in memory. It is a
// module of its own, since it needs cgo and libenet:
//
//	apt-get install libenet-dev gcc
//	go -C scripts/bench/netcodepeers run . -players 100 -ticks 300 -rounds 5
//
// Both play the same game over real UDP sockets of loopback, in one thread of
// one process: a server, and a socket per player; per tick a command of 40 bytes
// up and a snapshot of 600 bytes down for each, unreliable. They take turns, and
// medians are reported. Every message that arrives is counted.
//
// # What is not comparable
//
//   - ENet is C, and is called once per round: cgo costs nothing here. A Go game
//     would pay for it with each call.
//   - The server hands its datagrams to the kernel 64 at a time (sendmmsg) here,
//     one by one in ENet. Over loopback a sender pays for the delivery as well.
//   - ENet has no versions, approval, commands that replace each other, or round
//     trips of streams, and measures time in whole milliseconds by its own clock;
//     it throttles unreliable packets, which is left on. It coalesces and pings.
//   - Memory is what the server and both ends of all connections take from the
//     heap: a Go heap after a collection, and what malloc has given out. ENet
//     reserves its peers when a host is made, so that those of its players are
//     not in the figure; buffers for batches of the server's socket are in Go's.
//
// Go's ENet binding (codecat/go-enet) and netcode.io's Go port are not to be had
// from the module proxy of the laboratory, so that C's ENet itself stands here.
package main
