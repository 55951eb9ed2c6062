package bench

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// runTURN repeats a run until coturn answers: it is slow to start.
func runTURN(t *testing.T, cfg Config, turn benchrig.TURNConfig) Result {
	t.Helper()
	turn.User, turn.Password = "u", "p"
	cfg.Warmup, cfg.Drain = None, time.Second
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var r Result
	var err error
	if !testkit.Poll(time.Minute, func() bool {
		r, err = Run(ctx, cfg, Dialect{benchrig.NewTURN(turn)})
		return err == nil || errors.Is(err, ErrConfig)
	}) || err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTURN: what is offered arrives by coturn in each shape, over both families and over DTLS, and keep-alives are answered.
func TestTURN(t *testing.T) {
	t.Parallel()
	port, log := testkit.Coturn(t, "--allow-loopback-peers")
	ipv4, ipv6 := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)
	for name, c := range map[string]struct {
		cfg    Config
		server netip.AddrPort
	}{
		"pairs":   {Config{Load: Load{Matches: 40}}, ipv4},
		"star":    {Config{Load: Load{Shape: shapeStar, Matches: 3, Players: 5}}, ipv4},
		"up":      {Config{Load: Load{Shape: shapeStar, Matches: 2, Players: 3, Direction: directionUp}}, ipv4},
		"traffic": {Config{Load: Load{Matches: 2, Traffic: "movement-20p-30hz", Players: 5}}, ipv4},
		"idle":    {Config{Load: Load{Shape: shapeIdle, Matches: 10, Keepalive: 50 * time.Millisecond}}, ipv4},
		"ipv6":    {Config{Load: Load{Matches: 10, Family: benchrig.FamilyIPv6}}, ipv6},
		"dtls":    {Config{Load: Load{Matches: 40, Transport: benchrig.TransportDTLS}}, ipv4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.Duration = 200 * time.Millisecond
			if c.cfg.Traffic == "" && c.cfg.Shape != shapeIdle {
				c.cfg.Rate = 1000
			}
			r := runTURN(t, c.cfg, benchrig.TURNConfig{Server: c.server})
			if r.Delivered == 0 || 2*r.Lost > r.Sent || r.Misdelivered+r.Corrupt+r.Duplicated > 0 || len(r.Errors) > 0 {
				t.Errorf("delivered %d of %d, misdelivered %d, corrupt %d, twice %d, errors %v\n%s",
					r.Delivered, r.Sent, r.Misdelivered, r.Corrupt, r.Duplicated, r.Errors, log)
			}
			if k := r.Keepalives; c.cfg.Shape == shapeIdle && (k.Answered == 0 || k.Answered > k.Sent || k.Latency.Samples == 0) {
				t.Errorf("keep-alives: %+v", k)
			}
		})
	}
}

// TestTURNRefresh: a run outlasts the lifetimes of coturn's permissions, channels and nonces.
func TestTURNRefresh(t *testing.T) {
	t.Parallel()
	port, log := testkit.Coturn(t, "--allow-loopback-peers", "--permission-lifetime=1", "--channel-lifetime=1", "--stale-nonce=1")
	cfg := Config{Load: Load{Matches: 3, Rate: 200, Duration: 4 * time.Second}}
	r := runTURN(t, cfg, benchrig.TURNConfig{
		Server: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), RefreshAfter: 300 * time.Millisecond,
	})
	if r.Lost > r.Sent/20 || len(r.Errors) > 0 {
		t.Errorf("lost %d of %d, errors %v\n%s", r.Lost, r.Sent, r.Errors, log)
	}
}

// TestTURNAllocs: neither sending nor receiving allocates.
func TestTURNAllocs(t *testing.T) {
	port, _ := testkit.Coturn(t, "--allow-loopback-peers")
	turn := benchrig.TURNConfig{Server: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	runTURN(t, Config{Load: Load{Matches: 1, Rate: 10, Duration: 100 * time.Millisecond}}, turn) // It has started.
	turn.User, turn.Password = "u", "p"
	checkRoundAllocs(t, Config{Load: Load{Matches: 50, Rate: 20_000, Warmup: None, Duration: time.Minute}}, benchrig.NewTURN(turn))
}
