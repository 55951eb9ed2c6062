// Package websocket is a transport of the relay protocol over WebSocket, which is
// the only one that browsers have. It owns the connections: upgrade, framing,
// queues, limits and how each connection ends. The engine interprets the messages.
//
//	t, err := websocket.New(websocket.Config{})
//	// engine.Config.Transports has t; an http.Server has t as handler of "/"
//
// A [Transport] is both an [engine.Transport] and an [net/http.Handler], which
// the program mounts at the path / next to the Allocations API. TLS, listening
// and the timeouts of the handshake belong to the program's http.Server.
//
// # On the wire
//
// A message of the relay protocol is one binary message of WebSocket. The relay
// sends each in one frame. It confirms no extension, compression included, and a
// subprotocol only to a client that offers some, since real clients reject what they
// did not ask for: the name "binary" if it is among them, which Emscripten offers,
// else the first. The name has no meaning: there is one protocol here. The answer to
// the upgrade has the headers that RFC 6455 requires, and Date.
//
//	text message                   closed with 1003
//	more than 1,472 bytes          closed with 1009; no client sends such a message
//	other violations of RFC 6455   closed with 1002
//	ERROR 1 or 4 was sent          closed with 1000 after all queued messages; a
//	                               client whose connection ends without such an
//	                               ERROR waits for ever
//	the context of Run is done     closed with 1001 after all queued messages
//	no BIND_RECEIVED was sent      closed with 1008 after 10 s, since the
//	                               client has no allocation
//	64 messages before             closed with 1008
//	BIND_RECEIVED, or 16 KiB
//	of frames without a message
//	nothing sent for IdleTimeout   closed with 1000; a client with an allocation is sent
//	                               echoes, or answers pings
//	slow reader, no pong           reset
//	no BIND_RECEIVED was sent,     reset
//	and a limit is reached
//
// # Sizes
//
// The largest message that is sent has 1,386 bytes. A native client closes
// its connection, with 1009, at a message larger than its own maximum less 14. A
// WebGL client drops messages above its maximum. A UDP peer with default settings
// may send 1,400 bytes. 1,386 is therefore what every client with default
// settings accepts; the engine drops and counts larger messages.
//
// # Slow readers
//
// Each connection has a queue, limited in messages and bytes, that drops the
// newest message when it is full. 256 messages are less than the
// receive queue of a native client, which closes its connection when that
// overflows. A writer goroutine per connection writes several frames per system
// call. With TLS each write is one record, and a record with more than one frame
// has at most 1,400 bytes of frames, since Unity's native client fails at larger
// ones; for browsers, which send an Origin header, it has up to 16 KiB. A connection
// is reset when a write takes longer than 5 s, or when its queue overflowed
// and was not empty within 5 s since. The socket's send buffer is limited
// too, since data in it is old when it arrives.
//
// When the relay is busy, the message is dropped and the connection is not read for a
// millisecond, so that TCP slows the sender down.
//
// # Floods
//
// Before the relay has sent BIND_RECEIVED, a connection may send 64 messages. Frames
// without a message, such as pings, pongs and empty fragments, may have 16 KiB until
// then, and later in each PingInterval, headers of further fragments included. A ping
// or a pong counts as 200 bytes more.
//
// # Pages in the background
//
// A browser stops or slows down the timers of a page in the background, which then sends
// no PING of the relay protocol, and answers pings of WebSocket itself. A bound client
// from which no message came for PingInterval is pinged, and the pong counts as a
// message of its allocation. So a page stays in its match as long as its connection lives.
//
// # Client addresses
//
// Connections are limited in total and per address, which is the /56 for IPv6. At a
// limit, a newcomer takes the place of a connection that has bound no allocation.
// Behind a reverse proxy the address comes from X-Forwarded-For, as far as
// Config.TrustedProxies wrote it. Connections of a trusted proxy without an
// address of a client count in total only. Origins are not checked unless
// Config.AllowOrigins is set, since keys authenticate clients here, not cookies.
//
// # Goroutines
//
// A connection has the goroutine of the http.Server, which reads, one that writes,
// and during a ping one that waits for the pong. Run returns when all have ended.
// While Run does not run there are none, and requests are answered with 503.
package websocket
