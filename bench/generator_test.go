package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func startNull(t *testing.T, cfg benchrig.NullConfig) netip.AddrPort {
	t.Helper()
	n, err := benchrig.NewNullRelay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("null relay: %v", err)
		}
	})
	return n.Addr()
}

// smallConfig is a load that a busy machine can carry.
func smallConfig(shape string) Config {
	return Config{
		Load: Load{
			Shape: shape, Matches: 20, Players: 3, Rate: 6000, Warmup: 40 * time.Millisecond, Duration: 120 * time.Millisecond, Drain: time.Second,
		},
	}
}

func run(t *testing.T, cfg Config, d benchrig.Dialect) Result {
	t.Helper()
	r, err := Run(t.Context(), cfg, Dialect{d})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkClean fails unless every datagram of the run has arrived where it
// should. Lateness is no failure: the machine may be busy.
func checkClean(t *testing.T, r Result) {
	t.Helper()
	// Times are whole nanoseconds, so that one datagram more may be due.
	planned := uint64(r.Load.Rate * r.Load.Duration.Seconds())
	want := r.Offered
	if want-planned > 1 || r.Sent != want || r.Delivered != want {
		t.Errorf("offered %d, sent %d, delivered %d of %d: %s", r.Offered, r.Sent, r.Delivered, planned, r.Causes)
	}
	if r.Duplicated+r.Late+r.Corrupt+r.Misdelivered+r.Reordered != 0 || len(r.Errors) != 0 {
		t.Errorf("duplicated %d, late %d, corrupt %d, misdelivered %d, reordered %d, errors %v",
			r.Duplicated, r.Late, r.Corrupt, r.Misdelivered, r.Reordered, r.Errors)
	}
	if r.Latency.Samples != want || r.Latency.Min <= 0 || r.Latency.Max < r.Latency.P50 {
		t.Errorf("latency %+v", r.Latency)
	}
	var perSecond uint64
	for _, s := range r.Seconds {
		perSecond += s.Offered
	}
	if whole := uint64(r.Load.Rate * (r.Load.Duration + r.Load.Warmup).Seconds()); perSecond-whole > 1 {
		t.Errorf("%d offered in all seconds, want %d", perSecond, whole)
	}
}

// swapOnSockets opens so many sockets for a few matches.
type swapOnSockets struct {
	benchrig.Swap
	sockets int
}

func (d swapOnSockets) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	p.Sockets = d.sockets
	return d.Swap.Open(ctx, p)
}

func TestRunNullRelay(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{shapePairs, shapeStar} {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			relay := startNull(t, benchrig.NullConfig{Star: shape == shapeStar})
			cfg := smallConfig(shape)
			r := run(t, cfg, swapOnSockets{benchrig.Swap{Relay: relay}, 3})
			checkClean(t, r)
			if r.WireBytes != benchrig.DefaultHeader+defaultPayload || r.Dialect != "swap" || r.Name != "swap" {
				t.Errorf("%d bytes, dialect %q, name %q", r.WireBytes, r.Dialect, r.Name)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRunNoRelay: a relay that does not answer is reported at once.
func TestRunNoRelay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, smallConfig(shapePairs), Dialect{benchrig.Swap{Relay: netip.MustParseAddrPort("127.0.0.1:9")}}); err == nil {
		t.Error("a load on nothing")
	}
}

func TestRunClosedLoop(t *testing.T) {
	t.Parallel()
	cfg := smallConfig(shapePairs)
	cfg.Rate, cfg.Window, cfg.Matches = 0, 1, 1
	cfg.Duration = time.Second // What was due while the machine stood still is not made up for.
	r := run(t, cfg, benchrig.Direct{})
	if r.Delivered == 0 || r.Lost != 0 || r.Offered != r.Sent || len(r.Causes) == 0 {
		t.Errorf("offered %d, sent %d, delivered %d, lost %d, causes %v", r.Offered, r.Sent, r.Delivered, r.Lost, r.Causes)
	}
}

func TestRunProgress(t *testing.T) {
	cfg := smallConfig(shapePairs)
	cfg.Rate, cfg.Duration = 1000, 150*time.Millisecond
	var seen []Second
	cfg.OnSecond = func(s Second) { seen = append(seen, s) }
	r := run(t, cfg, benchrig.Direct{})
	// Seconds end where the measured interval begins: one has the warm-up.
	if len(seen) == 0 || seen[0].At != -1 || seen[0].Offered != 40 {
		t.Fatalf("progress %+v", seen)
	}
	if seen[0] != r.Seconds[0] {
		t.Errorf("progress %+v, result %+v", seen[0], r.Seconds[0])
	}
}

// TestRunCancelled verifies that the result of a cancelled run is complete up
// to then, including losses.
func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := smallConfig(shapePairs)
	cfg.Duration, cfg.ServerPID = time.Minute, os.Getpid()
	cfg.OnSecond = func(s Second) {
		if s.At == 0 {
			cancel()
		}
	}
	r, err := Run(ctx, cfg, Dialect{benchrig.Direct{}})
	if !errors.Is(err, context.Canceled) || !r.Interrupted || r.Load.Duration != time.Minute {
		t.Fatalf("%v, %+v", err, r)
	}
	if r.Measured < time.Second || r.Measured > 50*time.Second || r.Offered < 6000 || r.Sent != r.Offered || r.Delivered != r.Sent {
		t.Errorf("offered %d, sent %d, delivered %d in %v: %s", r.Offered, r.Sent, r.Delivered, r.Measured, r.Causes)
	}
	if math.Abs(r.OfferedRate-6000) > 100 || r.Server.Datagrams == 0 || len(r.Seconds) < 2 ||
		!strings.Contains(r.Reasons(limitNone), "It was stopped after ") {
		t.Errorf("%v/s, server %+v, %d seconds: %s", r.OfferedRate, r.Server, len(r.Seconds), r.Causes)
	}
}

// TestRunCancelledEarly: in the set-up and in the warm-up there is nothing yet
// but what was asked for.
func TestRunCancelledEarly(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	soon, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	for name, c := range map[string]struct {
		ctx context.Context
		d   benchrig.Dialect
	}{
		"set-up":  {gone, benchrig.Swap{Relay: netip.MustParseAddrPort("127.0.0.1:9")}},
		"warm-up": {soon, benchrig.Direct{}},
	} {
		cfg := smallConfig(shapeStar)
		cfg.Warmup = time.Minute
		r, err := Run(c.ctx, cfg, Dialect{c.d})
		if !errors.Is(err, c.ctx.Err()) || !r.Interrupted || r.Measured != 0 || r.Offered+r.Sent+r.Delivered != 0 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
		if r.Version != ResultVersion || r.Load.Shape != shapeStar || r.Load.Endpoints != 80 || r.Load.Flows != 120 ||
			r.Reasons(limitNone) == "" {
			t.Errorf("%s: %+v, %q", name, r.Load, r.Causes)
		}
	}
}

type remoteDialect struct{ benchrig.Direct }

func (d remoteDialect) Open(ctx context.Context, p benchrig.Plan) (*benchrig.Rig, error) {
	r, err := d.Direct.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	r.Flows[0].Dst = netip.MustParseAddrPort("192.0.2.1:9")
	return r, nil
}

// TestRemoteRefused: datagrams leave this machine only with AllowRemote.
func TestRemoteRefused(t *testing.T) {
	if _, err := Run(t.Context(), smallConfig(shapePairs), Dialect{remoteDialect{}}); err == nil {
		t.Error("a load on another machine")
	}
	r, err := benchrig.NewRig(planOf(t, smallConfig(shapePairs)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.SendTo(0, netip.MustParseAddrPort("192.0.2.1:9"), nil); err == nil {
		t.Error("a datagram to another machine")
	}
	if _, err := NewDialect(DialectConfig{BaseURL: "http://192.0.2.1:7777"}); err == nil {
		t.Error("an API on another machine")
	}
}

func TestRoundAllocs(t *testing.T) {
	for name, cfg := range map[string]Config{
		"open":   {Load: Load{Matches: 50, Rate: 20_000, Warmup: -1, Duration: time.Minute}},
		"closed": {Load: Load{Matches: 4, Window: 2, Warmup: -1, Duration: time.Minute}},
		"star":   {Load: Load{Shape: shapeStar, Matches: 2, Rate: 20_000, Warmup: -1, Duration: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) { checkRoundAllocs(t, cfg, benchrig.Direct{}) })
	}
}

func checkRoundAllocs(t *testing.T, cfg Config, d benchrig.Dialect) {
	t.Helper()
	cfg, err := cfg.withDefaults(d)
	if err != nil {
		t.Fatal(err)
	}
	rig, err := d.Open(t.Context(), planOf(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer rig.Close()
	skipIfAllocating(t)
	g := newGenerator(&cfg, rig, 1)
	for sock.Now() < g.times.start {
	}
	round := func() {
		if _, err := g.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if allocs := testing.AllocsPerRun(500, round); allocs != 0 {
		t.Errorf("%v allocations per round", allocs)
	}
	if !testkit.Poll(10*time.Second, func() bool { round(); return g.recorder.interval.delivered > 0 }) {
		t.Error("no datagram arrived")
	}
}

// directGenerator returns the generator of a run whose sockets send to each other.
func directGenerator(t *testing.T, cfg Config, run uint32) *generator {
	t.Helper()
	cfg, err := cfg.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	rig, err := benchrig.Direct{}.Open(t.Context(), planOf(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rig.Close() })
	return newGenerator(&cfg, rig, run)
}

// TestAccounting feeds the generator with what a bad relay might send.
func TestAccounting(t *testing.T) {
	g := directGenerator(t, Config{Load: Load{Matches: 2, Rate: 1000, Warmup: -1}}, 77)
	cfg, rig := g.cfg, g.rig
	f := &g.flows[0]
	f.seq = 10
	to := rig.Endpoints[rig.Flows[0].To].Addr
	inject := func(ep int, size int, s stamp) {
		pkt := make([]byte, size)
		s.put(pkt)
		if err := rig.SendTo(ep, to, pkt); err != nil {
			t.Fatal(err)
		}
	}
	g.times.measure = sock.Now()
	due := g.times.measure
	inject(0, cfg.Payload, stamp{77, 0, 3, due})
	inject(0, cfg.Payload, stamp{77, 0, 3, due})     // twice
	inject(0, cfg.Payload, stamp{77, 0, 1, due})     // late
	inject(0, cfg.Payload, stamp{77, 0, 10, due})    // never sent
	inject(0, cfg.Payload-1, stamp{77, 0, 4, due})   // cut off
	inject(0, cfg.Payload, stamp{77, 1, 0, due})     // the other direction's
	inject(0, cfg.Payload, stamp{76, 0, 5, due})     // of another run
	inject(0, cfg.Payload, stamp{77, 999, 5, due})   // no such flow
	inject(0, cfg.Payload, stamp{77, 0, 6, due - 1}) // of the warm-up
	if err := rig.SendTo(0, to, []byte("what?")); err != nil {
		t.Fatal(err)
	}
	for total, begin := 0, time.Now(); total < 10 && time.Since(begin) < 5*time.Second; {
		n, err := g.rig.Receive(maxRecvBatches, g.accountBatch)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	got := g.recorder.count
	if g.recorder.interval.delivered != 2 || got.duplicated != 1 || got.reordered != 1 || got.corrupt != 3 ||
		got.misdelivered != 1 || got.arrived != 7 {
		t.Errorf("%+v", got)
	}
	if g.recorder.errors["straggler"] != 2 || len(g.recorder.errors) != 1 {
		t.Errorf("%v", g.recorder.errors)
	}
}
