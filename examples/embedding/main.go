// Command embedding is an HTTP server with pages of its own that is a relay as well: the Relay
// Allocations API is at /v1/ of the same server, WebSockets are at its root, and the other datagrams go
// to a UDP port.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/relay"
)

func main() {
	web := flag.String("http", "127.0.0.1:8080", "TCP address of the web server")
	udp := flag.String("udp", "127.0.0.1:8081", "UDP address of the relay, which the players reach")
	dir := flag.String("dir", "", "directory for what a restart needs; empty: a restart ends all matches")
	flag.Parse()
	addr, err := netip.ParseAddrPort(*udp)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *web)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Printf("http://%s is a web server and a relay", listener.Addr())
	if err := serve(ctx, listener, addr, *dir, os.Getenv("RELAY_TOKEN")); err != nil {
		log.Fatal(err)
	}
	log.Print("stopped")
}

// serve runs the web server and the relay until ctx ends, or until one of them fails.
func serve(ctx context.Context, listener net.Listener, udp netip.AddrPort, dir, token string) error {
	calls := httpapi.Config{Anonymous: token == ""}
	if token != "" {
		calls.Tokens = []httpapi.Token{{Secret: token, Project: "game", Environment: "live", Server: true}}
	}
	pages := http.NewServeMux()
	r, err := relay.New(relay.Config{
		Dir:      dir,
		Listener: listener, // on the internet with TLS
		Pages:    pages,
		API:      calls,
		Engine:   engine.Config{Listen: []netip.AddrPort{udp}}, // also what players are told; behind a NAT, set Advertise
		DTLS:     &dtls.Config{}, WebSocket: &websocket.Config{},
	})
	if err != nil {
		return err
	}
	pages.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "players here now: %d\n", r.Engine().Stats().Bound)
	})
	return r.Run(ctx)
}
