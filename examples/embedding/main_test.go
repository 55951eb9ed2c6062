package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type embedded struct {
	url  string
	http http.Client
	stop context.CancelFunc
	err  error // once ended is done
	done sync.WaitGroup
}

func start(t *testing.T, token string) *embedded {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &embedded{url: "http://" + listener.Addr().String(), stop: cancel}
	e.http.Transport = new(http.Transport)
	e.done.Go(func() { e.err = serve(ctx, listener, netip.MustParseAddrPort("127.0.0.1:0"), "", token) })
	t.Cleanup(func() {
		e.http.CloseIdleConnections()
		cancel()
		e.done.Wait()
	})
	return e
}

func (e *embedded) page(t *testing.T) string {
	t.Helper()
	resp, err := e.http.Get(e.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return string(text)
}

// TestEmbedding: a host and a player exchange datagrams through the relay of a web server that also
// has a page of its own, and the server stops without an error.
func TestEmbedding(t *testing.T) {
	e := start(t, "a-secret-of-16-bytes")
	if got := e.page(t); got != "players here now: 0\n" {
		t.Errorf("page %q", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // bounds a test that hangs
	defer cancel()
	calls := &api.Client{BaseURL: e.url, HTTP: &e.http}
	if _, err := client.Reserve(ctx, calls, 1, ""); err == nil {
		t.Error("a caller without a token has an allocation")
	}
	calls = &api.Client{BaseURL: e.url + "/", Token: "a-secret-of-16-bytes", HTTP: &e.http}
	ticket, err := client.Reserve(ctx, calls, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	host := open(t, ticket)
	if err := host.Bind(ctx); err != nil {
		t.Fatal(err)
	}
	code, err := calls.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	if ticket, err = client.Redeem(ctx, calls, code); err != nil {
		t.Fatal(err)
	}
	toHost, err := open(t, ticket).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the page counts both", func() bool { return e.page(t) == "players here now: 2\n" })

	var peer *client.Peer
	testkit.Eventually(t, "the host hears the player", func() bool {
		if _, err := toHost.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if peer == nil {
			peer, err = host.TryAccept()
		}
		return peer != nil || err != nil
	})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	if n, err := peer.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	testkit.Eventually(t, "the player hears the host", func() bool {
		if _, err := peer.Write([]byte("welcome")); err != nil {
			t.Fatal(err)
		}
		n, ok, err := toHost.TryRead(buf)
		if err != nil {
			t.Fatal(err)
		}
		return ok && string(buf[:n]) == "welcome"
	})

	e.stop()
	e.done.Wait()
	if e.err != nil {
		t.Errorf("server ended with %v", e.err)
	}
}

// TestAnonymous: without a token the server accepts every caller.
func TestAnonymous(t *testing.T) {
	e := start(t, "")
	if _, err := client.Reserve(context.Background(), &api.Client{BaseURL: e.url, HTTP: &e.http}, 1, ""); err != nil {
		t.Error(err)
	}
}

// TestFailure: a relay that cannot open its port is an error.
func TestFailure(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = serve(context.Background(), listener, netip.MustParseAddrPort("192.0.2.1:1"), "", "")
	if err == nil || !strings.Contains(err.Error(), "192.0.2.1:1") {
		t.Errorf("error %v", err)
	}
}

func open(t *testing.T, ticket client.Ticket) *client.Session {
	t.Helper()
	s, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(context.Background()) })
	t.Cleanup(func() {
		_ = s.Close()
		running.Wait()
	})
	return s
}
