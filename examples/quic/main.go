// Command quic is HTTP over QUIC over a relay: the host is a net/http server behind its router, and
// each player that has its invitation is a client of it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/quic-go/quic-go"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
)

func main() {
	url := flag.String("api", "http://127.0.0.1:7777", "URL of the Relay Allocations API; RELAY_TOKEN is its token")
	invitation := flag.String("join", "", "invitation of a host; without it, be a host")
	path := flag.String("get", "/score", "path to request from the host")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	relay := &api.Client{BaseURL: *url, Token: os.Getenv("RELAY_TOKEN")}
	var err error
	if *invitation == "" {
		err = host(ctx, relay, os.Stdout)
	} else {
		err = get(ctx, relay, *invitation, *path, os.Stdout)
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// host serves HTTP to players until ctx ends. It prints the invitation: the join code, and the
// fingerprint by which a player recognizes the host.
func host(ctx context.Context, relay *api.Client, out io.Writer) error {
	ticket, err := client.Reserve(ctx, relay, 8, "")
	if err != nil {
		return err
	}
	session, end, err := start(ctx, ticket)
	if err != nil {
		return err
	}
	defer end()
	if err := session.Bind(ctx); err != nil {
		return err
	}
	code, err := relay.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		return err
	}
	secure, fingerprint, err := newIdentity()
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: session.PacketConn()}
	defer transport.Close()
	listener, err := transport.Listen(secure, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "invitation: %s.%s\n", code, fingerprint)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /score", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, "%s %s from %s\n", r.Method, r.URL.Path, r.RemoteAddr)
		_, _ = io.WriteString(w, "red 3, blue 5\n") // If it fails, the player has left.
	})
	return serveHTTP(ctx, listener, mux)
}

// get requests a path from the host of an invitation, and prints the exchange.
func get(ctx context.Context, relay *api.Client, invitation, path string, out io.Writer) error {
	code, fingerprint, _ := strings.Cut(invitation, ".")
	ticket, err := client.Redeem(ctx, relay, code)
	if err != nil {
		return err
	}
	session, end, err := start(ctx, ticket)
	if err != nil {
		return err
	}
	defer end()
	toHost, err := session.Connect(ctx)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: session.PacketConn()}
	defer transport.Close()
	conn, err := transport.Dial(ctx, toHost.RemoteAddr(), trust(fingerprint), nil)
	if err != nil {
		return err
	}
	defer conn.CloseWithError(0, "")

	web := httpClient(conn)
	defer web.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host"+path, nil)
	if err != nil {
		return err
	}
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprintf(out, "> GET %s\n< %s\n", path, resp.Status)
	_, err = io.Copy(out, resp.Body)
	return err
}
