package client

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func silent(t testing.TB, addr string) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestNextEndpoint: an endpoint that does not answer costs a second and not the session,
// whatever its family.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"same family": "127.0.0.1:0", "other family": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFakeRelay(t)
			ticket := hostTicket(silent(t, first))
			ticket.Alternatives = []netip.AddrPort{silent(t, first), f.addr}
			start := time.Now()
			s := running(t, Config{Ticket: ticket})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := s.Bind(ctx); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < 2*time.Second {
				t.Errorf("bound after %v, before two endpoints had their second", took)
			}
			if got := s.LocalAddr().Addr().Unmap(); !got.Is4() {
				t.Errorf("the socket is at %v", got)
			}
		})
	}
}

// TestNextEndpointWhileBound: a player that loses the family of its endpoint binds by the other.
func TestNextEndpointWhileBound(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	ticket := hostTicket(f.addr)
	ticket.Alternatives = []netip.AddrPort{silent(t, "[::1]:0")}
	cfg := brisk(ticket)
	s := running(t, cfg)
	if err := s.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = f.conn.Close()
	// It takes turns, so a slow machine may look at the first one again.
	testkit.Eventually(t, "a BIND by the other family", func() bool { return s.transport.socket.Load().server == ticket.Alternatives[0] })
}

// TestEndpointTurns: turns of one, two and four seconds, so that a way of any round trip time
// gets one that is long enough, each with a nonce of its own.
func TestEndpointTurns(t *testing.T) {
	t.Parallel()
	ticket := hostTicket(silent(t, "127.0.0.1:0"))
	ticket.Alternatives = []netip.AddrPort{silent(t, "[::1]:0")}
	s := idle(t, Config{Ticket: ticket, BindTimeout: time.Minute})
	beginBind(s, 0)
	var turns []time.Duration
	var nonces []uint16
	last := s.transport.socket.Load()
	for now := time.Duration(0); now < 20*time.Second; now += 50 * time.Millisecond {
		drain(t, s, int64(now))
		if at := s.transport.socket.Load(); at != last {
			last = at
			turns, nonces = append(turns, now), append(nonces, s.bind.last)
		}
	}
	want := []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 6 * time.Second, 10 * time.Second,
		14 * time.Second, 18 * time.Second}
	if !slices.Equal(turns, want) {
		t.Errorf("turns began at %v, want %v", turns, want)
	}
	for i := range nonces[1:] {
		if nonces[i+1] <= nonces[i] {
			t.Errorf("nonces %v", nonces)
		}
	}
}

// TestNoSocketOfThatFamily: an endpoint to which no socket can be opened costs nothing.
func TestNoSocketOfThatFamily(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	ticket := hostTicket(silent(t, "[::1]:0"))
	ticket.Alternatives = []netip.AddrPort{f.addr}
	cfg := brisk(ticket)
	cfg.LocalAddr = netip.MustParseAddr("127.0.0.1")
	s := running(t, cfg)
	if err := s.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.transport.socket.Load().server != f.addr {
		t.Errorf("bound at %v", s.transport.socket.Load().server)
	}
}

func TestTicketHasAllEndpoints(t *testing.T) {
	t.Parallel()
	a := goodAllocation()
	a.ServerEndpoints = append(a.ServerEndpoints,
		api.ServerEndpoint{ConnectionType: "udp", Network: "udp", Host: "relay.example.org", Port: 7777},
		api.ServerEndpoint{ConnectionType: "udp", Network: "udp", Host: "2001:db8::1", Port: 7777})
	got, err := TicketFrom(a)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:7777")}
	if got.Server != netip.MustParseAddrPort("192.0.2.1:7777") || !slices.Equal(got.Alternatives, want) {
		t.Errorf("%v, %v", got.Server, got.Alternatives)
	}
	got.Alternatives = []netip.AddrPort{netip.MustParseAddrPort("[::]:7777")}
	if err := got.check(); err == nil {
		t.Error("an unspecified alternative is accepted")
	}
}
