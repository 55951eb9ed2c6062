package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

func goodAllocation() api.Allocation {
	return api.Allocation{
		AllocationID:      joinerID.String(),
		AllocationIDBytes: joinerID[:],
		ConnectionData:    make([]byte, proto.MaxConnectionData),
		Key:               make([]byte, len(proto.Key{})),
		ServerEndpoints: []api.ServerEndpoint{
			{ConnectionType: "dtls", Network: "udp", Host: "192.0.2.1", Port: 7778},
			{ConnectionType: "udp", Network: "udp", Host: "192.0.2.1", Port: 7777},
		},
	}
}

func TestTicketFrom(t *testing.T) {
	t.Parallel()
	got, err := TicketFrom(goodAllocation())
	if err != nil {
		t.Fatal(err)
	}
	if got.Server != netip.MustParseAddrPort("192.0.2.1:7777") || got.ID != joinerID || len(got.ConnectionData) != 255 {
		t.Errorf("ticket is %+v", got)
	}
	if text := fmt.Sprintf("%+v", got); !strings.Contains(text, "[redacted]") {
		t.Errorf("prints its key: %s", text)
	}
}

func TestTicketFromRefuses(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*api.Allocation){
		"short id":        func(a *api.Allocation) { a.AllocationIDBytes = a.AllocationIDBytes[:15] },
		"zero id":         func(a *api.Allocation) { a.AllocationIDBytes = make([]byte, 16) },
		"short key":       func(a *api.Allocation) { a.Key = a.Key[:63] },
		"no data":         func(a *api.Allocation) { a.ConnectionData = nil },
		"long data":       func(a *api.Allocation) { a.ConnectionData = make([]byte, 256) },
		"long host data":  func(a *api.Allocation) { a.HostConnectionData = make([]byte, 256) },
		"no udp endpoint": func(a *api.Allocation) { a.ServerEndpoints = a.ServerEndpoints[:1] },
		"name":            func(a *api.Allocation) { a.ServerEndpoints[1].Host = "relay.example.org" },
		"port 0":          func(a *api.Allocation) { a.ServerEndpoints[1].Port = 0 },
		"port 65536":      func(a *api.Allocation) { a.ServerEndpoints[1].Port = 65536 },
		"any address":     func(a *api.Allocation) { a.ServerEndpoints[1].Host = "0.0.0.0" },
	} {
		a := goodAllocation()
		spoil(&a)
		if _, err := TicketFrom(a); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Config){
		"no ticket":         func(c *Config) { c.Ticket = Ticket{} },
		"negative duration": func(c *Config) { c.PingPeriod = -time.Second },
		"negative size":     func(c *Config) { c.ReceiveQueue = -1 },
		"content limit":     func(c *Config) { c.MaxContent = proto.MaxContent + 1 },
	} {
		cfg := Config{Ticket: hostTicket(nowhere)}
		spoil(&cfg)
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := Config{Ticket: hostTicket(nowhere), LocalAddr: netip.MustParseAddr("192.0.2.77")}
	var opErr *net.OpError
	if _, err := New(cfg); !errors.As(err, &opErr) {
		t.Errorf("foreign local address: %v", err)
	}
}

// TestReserveAndRedeem asks a small API that knows one code.
func TestReserveAndRedeem(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter, status int, a api.Allocation) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"allocation": a}})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/allocate", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusCreated, goodAllocation())
	})
	mux.HandleFunc("POST /v1/join", func(w http.ResponseWriter, r *http.Request) {
		var in api.JoinRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.JoinCode != "BCDFGH" {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		a := goodAllocation()
		a.HostConnectionData = []byte("ticket")
		answer(w, http.StatusOK, a)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := &api.Client{BaseURL: server.URL, HTTP: server.Client()}
	host, err := Reserve(context.Background(), c, 4, "")
	if err != nil || host.ID != joinerID || host.HostConnectionData != nil {
		t.Errorf("Reserve: %+v, %v", host, err)
	}
	joiner, err := Redeem(context.Background(), c, "BCDFGH")
	if err != nil || string(joiner.HostConnectionData) != "ticket" {
		t.Errorf("Redeem: %+v, %v", joiner, err)
	}
	var problem *api.Problem
	if _, err := Redeem(context.Background(), c, "WWWWWW"); !errors.As(err, &problem) {
		t.Errorf("Redeem of an unknown code: %v", err)
	}
}

// TestRedeemTrimsTheCode: what a chat puts into a join code is not sent, so that any server finds it.
func TestRedeemTrimsTheCode(t *testing.T) {
	t.Parallel()
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = string(body)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	if _, err := Redeem(t.Context(), &api.Client{BaseURL: server.URL}, "\ufeff 678-9bc\u200b\n"); err == nil {
		t.Error("no error for 404")
	}
	if got != `{"joinCode":"6789bc"}` {
		t.Errorf("sent %s", got)
	}
}

// TestCloseOfZero: what no constructor has made has nothing to close.
func TestCloseOfZero(t *testing.T) {
	t.Parallel()
	for _, c := range []io.Closer{new(Session), new(Peer)} {
		for range 2 {
			if err := c.Close(); err != nil {
				t.Errorf("%T: %v", c, err)
			}
		}
	}
}
