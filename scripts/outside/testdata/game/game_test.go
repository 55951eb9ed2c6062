package game

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/relay"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestStore(t *testing.T) {
	relaytest.TestStore(t, func(*testing.T) alloc.Store { return NewStore() })
}

// cookie identifies callers by the program's own cookie.
func cookie(r *http.Request) (alloc.Caller, error) {
	c, err := r.Cookie("player")
	if err != nil {
		return alloc.Caller{}, err
	}
	return alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: c.Value}, nil
}

// TestParts: a relay with a store, a placer, a transport and callers of this program's own.
func TestParts(t *testing.T) {
	large := relaytest.Start(t, relay.Config{})
	transport := new(Transport)
	r := relaytest.Start(t, relay.Config{
		API:       httpapi.Config{Identify: cookie},
		Service:   alloc.ServiceConfig{Store: NewStore()},
		DTLS:      &dtls.Config{},
		WebSocket: &websocket.Config{},
		Engine:    engine.Config{Transports: []engine.Transport{transport}},
		Place:     func(own alloc.Relay) alloc.Relay { return &Placer{Relay: own, Large: large.Reserver()} },
	})
	caller := alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"}
	for _, size := range []int{2, 20} {
		res, err := r.Service().Allocate(t.Context(), caller, size, "")
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := relay.TicketOf(res)
		if err != nil {
			t.Fatal(err)
		}
		cfg := client.Config{Ticket: ticket}
		if size == 2 {
			cfg.Listen = transport.Dial
		}
		if err := r.Play(cfg).Bind(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if all, _, err := r.Engine().Allocations(t.Context(), engine.Filter{Transport: "channels"}, 0, 0); err != nil || len(all) != 1 {
		t.Errorf("by the program's own transport: %v, %v", all, err)
	}
	if small, large := r.Engine().Stats().Bound, large.Engine().Stats().Bound; small != 1 || large != 1 {
		t.Errorf("%d and %d hosts", small, large)
	}
}

// serve is the embedding in twelve lines.
func serve(ctx context.Context, listener net.Listener) error {
	r, err := relay.New(relay.Config{
		Listener:  listener,
		API:       httpapi.Config{Anonymous: true},
		DTLS:      &dtls.Config{},
		WebSocket: &websocket.Config{},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener) }()
	calls := &api.Client{BaseURL: "http://" + listener.Addr().String()}
	for {
		if _, err := client.Reserve(ctx, calls, 2, ""); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
