// Package relay is a whole relay inside another program: the data plane, the Allocations service and
// its HTTP handlers, DTLS and WebSocket, wired once. It is what `ferry serve` is, without its
// settings, admin pages and metrics.
//
//	r, err := relay.New(relay.Config{
//		Listener:  listener, // TCP: the API, WebSockets, and the program's own pages
//		Pages:     mux,
//		Engine:    engine.Config{Listen: []netip.AddrPort{udp}},
//		DTLS:      &dtls.Config{},
//		WebSocket: &websocket.Config{},
//		API:       httpapi.Config{Tokens: tokens},
//		Dir:       "relay", // matches go on after a restart
//	})
//	if err != nil {
//		return err
//	}
//	return r.Run(ctx)
//
// A program with an HTTP server of its own leaves Listener nil, sets URL if it has WebSockets, and
// mounts [Relay.Handler], which passes what is not the relay's to the program's own handler.
//
// Each part can be used alone as well: docs/embedding.md has examples.
package relay
