// Package websocket lets players into the relay over WebSocket, which is all
// that a browser has. It owns the connections: upgrade, framing, queues, limits
// and how each one ends. What a message means is the engine's alone.
//
// A [Transport] is both an [engine.Transport] and an [net/http.Handler], which
// the program mounts at the path / next to the Allocations API. TLS, listening
// and the time-outs of the handshake belong to the program's http.Server.
//
// # On the wire
//
// One message of the relay protocol is one binary message of WebSocket, in one
// frame when it comes from here (protocol.md 3.2). No subprotocol is confirmed
// and no extension, compression included, since real clients refuse both. The
// answer to the upgrade carries nothing but what RFC 6455 asks for, and Date.
//
//	a text message                 closed, 1003
//	more than 1,472 bytes          closed, 1009: no client sends such a message
//	other faults of the framing    closed, 1002
//	ERROR 1 or 4 was sent          closed, 1000, after it and all that was queued
//	                               before; a client that loses its connection
//	                               without one waits for ever
//	Run's context ended            closed, 1001, after all that was queued
//	no answer of the relay but     closed, 1008, after BindTimeout: whoever it is
//	ERROR                          has no allocation
//	nothing sent for IdleTimeout   closed, 1000: a bound client is sent echoes
//	slow reader, no pong           cut off, with a reset
//
// # Sizes
//
// The largest message that goes out is Config.MaxOutgoing. A native client ends
// its connection, with 1009, at more than its own maximum less 14, a WebGL
// client drops more than its maximum, and a UDP peer with default settings may
// send 1,400: so the default is 1,386, which every client takes that was not
// told to take less, and the engine drops and counts what is larger (protocol.md
// 2.10). Who has only WebGL clients can set 1,400; who raises the limit in the
// game, up to 1,472.
//
// # Slow readers
//
// Each connection has a queue of its own, bounded by messages and bytes, which
// drops the newest; 256 messages are less than a native client's receive queue,
// which ends the connection when it overflows. A writer goroutine per connection
// empties it, several frames per system call. With TLS each write is a record,
// and a record with more than one frame has at most 1,400 bytes of frames, since
// Unity's native client breaks at larger ones. A write that takes longer than
// WriteTimeout, and a queue that overflowed and has not been empty within
// WriteTimeout since, cut the connection off. The socket's own send buffer is
// bounded too, since what lies there is old when it arrives.
//
// Before the relay has sent something other than ERROR, 64 messages of a
// connection are delivered, and no more. When the relay is busy, the message is
// dropped and its connection is not read for a millisecond, so that TCP slows
// down the sender.
//
// # Who is calling
//
// Connections are counted in all and by address, which is the /56 for IPv6.
// Behind a reverse proxy X-Forwarded-For tells the address, and is believed only
// as far as Config.TrustedProxies reach; [ProxyListener] reads the PROXY
// protocol, likewise only from the proxies that it was given. Connections of a
// trusted proxy that does not tell count in all only. Origins are not checked
// unless Config.AllowOrigins is set: keys authenticate here, not cookies.
//
// # Goroutines
//
// Of a connection: the http.Server's, which reads, one that writes, and for the
// length of a ping one that waits for its pong. Run returns when all have
// ended. Without Run there are none, and callers get 503.
package websocket
