package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const (
	slowCallers   = 200
	slowPerOne    = 64 // connections of one address that the listener accepts
	honestCallers = 50
	// slowWithin bounds the wait for slow connections to be cut. They are after
	// 2.5 s (headers) and 5 s (bodies) here; the rest is for a busy machine.
	slowWithin = time.Minute
)

// TestSlowCallers sends one byte a second over 200 connections of one address, of a
// header or of a body. The listener accepts 64 of them, callers of another address are
// served meanwhile, and in the end the server has closed all of them.
func TestSlowCallers(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int32
	l := connlimit.Listen(inner, connlimit.Limits{PerAddress: slowPerOne, OnReject: func(why connlimit.Rejection) {
		if why != connlimit.EvictedAddress && why != connlimit.EvictedProtected { // Half of them have a token.
			t.Errorf("closed for %s", why)
		}
		refused.Add(1)
	}})
	stop := serveOn(t, l, x)
	defer stop()
	honest := otherAddress(t, inner.Addr().String())

	ctx, cancel := context.WithCancel(t.Context())
	var slow, called sync.WaitGroup
	defer slow.Wait()
	defer cancel()
	called.Add(slowCallers)
	for i := range slowCallers {
		slow.Go(func() { trickle(ctx, inner.Addr().String(), i%2 == 0, called.Done) })
	}
	called.Wait()
	var served int
	for range honestCallers {
		if status := honest(t); status == http.StatusOK {
			served++
		}
		// Those of honest callers the server may not have left yet.
		if n := l.Len(); n > slowPerOne+honestCallers {
			t.Fatalf("%d connections are open", n)
		}
	}
	if served != honestCallers || refused.Load() == 0 {
		t.Errorf("%d of %d honest callers were served, %d slow ones refused", served, honestCallers, refused.Load())
	}
	t.Logf("%d slow callers refused at once", refused.Load())
	testkit.Within(t, slowWithin, "the server to cut them off", func() bool { return l.Len() == 0 })
}

func serveOn(t *testing.T, l net.Listener, h http.Handler) (stop func()) {
	t.Helper()
	s := NewServer(h)
	s.ReadHeaderTimeout, s.ReadTimeout = s.ReadHeaderTimeout/2, s.ReadTimeout/2
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

// trickle sends a request a byte a second until the server has had enough. It
// calls called when it has a connection or none.
func trickle(ctx context.Context, addr string, body bool, called func()) {
	conn, err := net.Dial("tcp", addr)
	called()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	rest := "POST /v1/allocate HTTP/1.1\r\nHost: relay.example.org\r\nX-Slow: " + strings.Repeat("x", 1000)
	if body {
		head := "POST /v1/allocate HTTP/1.1\r\nHost: relay.example.org\r\nContent-Length: 1000\r\n" +
			"Authorization: Bearer " + tokenServer + "\r\n\r\n"
		if _, err := conn.Write([]byte(head)); err != nil {
			return
		}
		rest = strings.Repeat(" ", 1000)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range len(rest) {
		if _, err := conn.Write([]byte{rest[i]}); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// otherAddress returns a function that makes one call over a connection of its
// own, from 127.0.0.2, and returns its status, 0 if there was none.
func otherAddress(t *testing.T, server string) func(*testing.T) int {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: slowWithin}
	probe, err := dialer.Dial("tcp", server)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a second loopback address is needed: %v", err)
		}
		t.Skipf("this system has no second loopback address: %v", err)
	}
	_ = probe.Close()
	client := &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true},
		Timeout:   slowWithin,
	}
	return func(t *testing.T) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server+"/v1/regions", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tokenAnna)
		res, err := client.Do(r)
		if err != nil {
			t.Log(err)
			return 0
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
}
