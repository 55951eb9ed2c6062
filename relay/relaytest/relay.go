// Package relaytest helps to test programs that use a relay: [Start] runs one with its API in the
// process of a test, and [TestStore] checks a store of join codes.
package relaytest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/relay"
)

// Relay is a relay that runs until the end of a test, or until Stop.
type Relay struct {
	*relay.Relay
	// URL is the address of its API and of the pages in its configuration.
	URL string
	// HTTP is used by the clients of API. Its connections are closed at the end.
	HTTP *http.Client

	t       testing.TB
	running sync.WaitGroup
	err     error // of Run
}

// Start runs a relay on loopback and waits until it is ready. Without a Listener, it gets one with a
// free port; without a way to identify callers, it accepts all without limits. The test fails
// if Run returns an error.
func Start(t testing.TB, cfg relay.Config) *Relay {
	t.Helper()
	if cfg.Listener == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Listener = l
	}
	if a := &cfg.API; len(a.Tokens) == 0 && a.Authenticate == nil && a.Identify == nil {
		a.Anonymous, cfg.Engine.Unlimited = true, true
	}
	inner, err := relay.New(cfg)
	if err != nil {
		cfg.Listener.Close()
		t.Fatal(err)
	}
	r := &Relay{Relay: inner, URL: "http://" + cfg.Listener.Addr().String(), HTTP: &http.Client{Transport: new(http.Transport)}, t: t}
	ended := make(chan struct{})
	r.running.Go(func() {
		defer close(ended)
		r.err = inner.Run(context.Background())
	})
	t.Cleanup(r.Stop)
	select {
	case <-inner.Ready():
	case <-ended:
		t.Fatalf("the relay has ended: %v", r.err)
	}
	return r
}

// Stop stops the relay, as a process that exits does. It may be called more than once.
func (r *Relay) Stop() {
	r.t.Helper()
	r.HTTP.CloseIdleConnections()
	if err := r.Close(); err != nil {
		r.t.Error(err)
	}
	r.running.Wait()
	if r.err != nil {
		r.t.Errorf("the relay ended with %v", r.err)
		r.err = nil
	}
}

// API returns a client of the API with a token. If the relay accepts all callers, "player:NAME"
// is the player NAME, and "" a new player in each call.
func (r *Relay) API(token string) *api.Client {
	return &api.Client{BaseURL: r.URL, Token: token, HTTP: r.HTTP}
}

// Host starts a match for up to max players, and returns the session of its host, which is bound,
// and the join code. token is that of API. config returns the configuration of the session with a
// ticket, such as [Network.Client]; without it the session has the default one.
func (r *Relay) Host(token string, max int, config ...func(client.Ticket) client.Config) (host *client.Session, code string) {
	r.t.Helper()
	ctx, cancel := r.context()
	defer cancel()
	calls := r.API(token)
	ticket, err := client.Reserve(ctx, calls, max, "")
	if err != nil {
		r.t.Fatal(err)
	}
	host = r.Play(configOf(ticket, config))
	if err := host.Bind(ctx); err != nil {
		r.t.Fatal(err)
	}
	if code, err = calls.JoinCode(ctx, ticket.ID.String()); err != nil {
		r.t.Fatal(err)
	}
	return host, code
}

// Join joins a match by its code, and returns the connection to its host. token and config are those
// of Host.
func (r *Relay) Join(token, code string, config ...func(client.Ticket) client.Config) (*client.Session, *client.Peer) {
	r.t.Helper()
	ctx, cancel := r.context()
	defer cancel()
	ticket, err := client.Redeem(ctx, r.API(token), code)
	if err != nil {
		r.t.Fatal(err)
	}
	s := r.Play(configOf(ticket, config))
	host, err := s.Connect(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return s, host
}

func configOf(t client.Ticket, config []func(client.Ticket) client.Config) client.Config {
	if len(config) == 0 {
		return client.Config{Ticket: t}
	}
	return config[0](t)
}

// Play runs a session until the end of the test.
func (r *Relay) Play(cfg client.Config) *client.Session {
	r.t.Helper()
	s, err := client.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(context.Background()) })
	r.t.Cleanup(func() {
		_ = s.Close()
		running.Wait()
	})
	return s
}

// context bounds a test that hangs.
func (r *Relay) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.t.Context(), time.Minute)
}
