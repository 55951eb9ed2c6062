// Package docs tests the Go code of the pages in this directory.
package docs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/relay"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

// serve runs a relay, its API and the program's own pages until ctx ends.
func serve(ctx context.Context, udp netip.AddrPort, listener net.Listener, pages http.Handler, tokens []httpapi.Token) error {
	r, err := relay.New(relay.Config{
		Engine:    engine.Config{Listen: []netip.AddrPort{udp}},
		DTLS:      &dtls.Config{},
		WebSocket: &websocket.Config{},
		Listener:  listener, // TCP: the API at /v1/, WebSockets at the root, else Pages
		Pages:     pages,
		API:       httpapi.Config{Tokens: tokens},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// newParts is the same of single parts, without DTLS, WebSocket and pages.
func newParts(udp netip.AddrPort, tokens []httpapi.Token) (*engine.Server, http.Handler, error) {
	id, err := engine.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	server, err := engine.New(engine.Config{Listen: []netip.AddrPort{udp}, Region: "home"}, id)
	if err != nil {
		return nil, nil, err
	}
	service, err := alloc.NewService(alloc.ServiceConfig{ // It hears from the relay what is bound and what ends.
		Relay: server, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
	})
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	handler, err := httpapi.New(httpapi.Config{Service: service, Tokens: tokens})
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	return server, handler, nil // Call server.Run, and serve the handler with httpapi.NewServer.
}

// greet joins the match with the code, and returns the host's answer to a datagram.
func greet(ctx context.Context, relay *api.Client, code string) (string, error) {
	ticket, err := client.Redeem(ctx, relay, code) // a host calls client.Reserve
	if err != nil {
		return "", err
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		return "", err
	}
	defer session.Close()
	go func() { _ = session.Run(ctx) }()
	host, err := session.Connect(ctx) // a net.Conn
	if err != nil {
		return "", err
	}
	if _, err := host.Write([]byte("hello")); err != nil {
		return "", err
	}
	answer := make([]byte, 1500)
	n, err := host.Read(answer)
	return string(answer[:n]), err
}

// A program runs a relay with its API. A host allocates and binds, and a player joins it
// by the code.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		err := serve(ctx, netip.MustParseAddrPort("127.0.0.1:0"), listener, nil, []httpapi.Token{
			{Secret: "alice-0123456789", Project: "game", Environment: "live", Player: "alice"},
			{Secret: "bob-0123456789abc", Project: "game", Environment: "live", Player: "bob"},
		})
		if err != nil {
			log.Print(err)
		}
	})
	defer running.Wait()
	defer cancel()

	alice := &api.Client{BaseURL: "http://" + listener.Addr().String(), Token: "alice-0123456789"}
	bob := &api.Client{BaseURL: alice.BaseURL, Token: "bob-0123456789abc"}
	ticket, err := client.Reserve(ctx, alice, 4, "")
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		log.Fatal(err)
	}
	running.Go(func() { _ = session.Run(ctx) })
	defer session.Close()
	if err := session.Bind(ctx); err != nil {
		log.Fatal(err)
	}
	code, err := alice.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		log.Fatal(err)
	}
	running.Go(func() {
		peer, err := session.Accept(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		_, _ = peer.Write([]byte("welcome"))
	})
	fmt.Println(greet(ctx, bob, code))
	// Output:
	// welcome <nil>
}

// TestParts: a service hears from its relay what is bound and what ends.
func TestParts(t *testing.T) {
	t.Parallel()
	server, handler, err := newParts(netip.MustParseAddrPort("127.0.0.1:0"), []httpapi.Token{
		{Secret: "game-0123456789abc", Project: "game", Environment: "live", Server: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(t.Context()) })
	t.Cleanup(func() { server.Close(); running.Wait() })
	<-server.Ready()
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	calls := &api.Client{BaseURL: web.URL, Token: "game-0123456789abc"}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	ticket, err := client.Reserve(ctx, calls, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	code, err := calls.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.End(ctx, ticket.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Redeem(ctx, calls, code); err == nil {
		t.Error("the code of a host that has ended still leads there")
	}
}

// hostGame hosts a match for 8 players, and shows its join code, and the players that connect and leave.
func hostGame(ctx context.Context, relay *api.Client, show func(any)) error {
	d, code, err := netcode.HostRelay(ctx, relay, 8, netcode.Config{})
	if err != nil {
		return err
	}
	defer d.Close()
	show(code)
	return d.Run(ctx, 60, func(now time.Time, tick uint32) {
		for _, event := range d.Events() {
			show(event)
		}
	})
}

// joinGame joins a match by its code, over a network that loses 2 % of the datagrams, for a test.
func joinGame(ctx context.Context, relay *api.Client, code string, show func(any)) error {
	cfg := netcode.Config{Conditions: link.Conditions{Delay: 30 * time.Millisecond, Loss: 2}}
	d, _, err := netcode.JoinRelay(ctx, relay, code, cfg)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Run(ctx, 60, func(now time.Time, tick uint32) {
		for _, event := range d.Events() {
			show(event)
		}
	})
}

// TestGame plays the two: the player connects, and both show it.
func TestGame(t *testing.T) {
	t.Parallel()
	url, stop := relaytest.StartService(httpapi.Token{
		Secret: "game-0123456789abc", Project: "game", Environment: "live", Server: true,
	})
	t.Cleanup(stop)
	relay := &api.Client{BaseURL: url, Token: "game-0123456789abc"}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	var connected sync.WaitGroup
	connected.Add(2)
	onEvent := func(v any) {
		if event, ok := v.(netcode.Event); ok && event.State == netcode.StateConnected {
			connected.Done()
		}
	}
	code := make(chan string, 1)
	ended := make(chan error, 2)
	go func() {
		ended <- hostGame(ctx, relay, func(v any) {
			if text, ok := v.(string); ok {
				code <- text
			}
			onEvent(v)
		})
	}()
	go func() {
		select {
		case c := <-code:
			ended <- joinGame(ctx, relay, c[:3]+"-"+c[3:], onEvent)
		case <-ctx.Done():
			ended <- ctx.Err()
		}
	}()
	go func() {
		connected.Wait()
		cancel()
	}()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
			cancel()
		}
	}
}

// takeOver goes on with a match whose host has left.
func takeOver(ctx context.Context, relay *api.Client, code string, session *client.Session, ticket client.Ticket) (*client.Session, error) {
	for {
		next, err := client.Migrate(ctx, client.MigrationConfig{API: relay, Code: code, Ticket: ticket})
		if err != nil {
			return nil, err
		}
		s, err := client.New(client.Config{Ticket: next})
		if err != nil {
			return nil, err
		}
		go func() { _ = s.Run(ctx) }()
		if err := s.Bind(ctx); err == nil {
			session.Close() // the old one
			return s, nil   // a host's, if next has no HostConnectionData
		}
		s.Close() // The player let its turn pass, or ctx has ended.
	}
}

var _ = takeOver // internal/server/process has a test of migrations

// goBlock is a block of Go code in Markdown.
var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestGoBlocks: every block of Go code in these pages is a copy of code in this file.
func TestGoBlocks(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("embedding_test.go")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range goBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			if !strings.Contains(string(source), m[1]) {
				t.Errorf("%s: this block is not in embedding_test.go:\n%s", page, m[1])
			}
		}
	}
	if blocks < 2 {
		t.Errorf("%d blocks of Go code, want 2 at least: the test reads the wrong pages", blocks)
	}
}
