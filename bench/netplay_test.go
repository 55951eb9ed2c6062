package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// matchesConfig is a load of the shape netcode that a busy machine can carry.
func matchesConfig() Config {
	return Config{
		Shape: ShapeNetcode, Matches: 4, Players: 3, Rate: 30 * 4 * 3 * 2,
		Warmup: 100 * time.Millisecond, Duration: 300 * time.Millisecond, Drain: 10 * time.Second,
	}
}

func checkMatches(t *testing.T, r Result) {
	t.Helper()
	n := r.Netcode
	if n == nil {
		t.Fatal("nothing about connections")
	}
	if r.Offered == 0 || r.Sent != r.Offered || r.Delivered != r.Sent || n.Commands.Sent+n.Snapshots.Sent != r.Sent {
		t.Errorf("offered %d, sent %d (%d and %d), delivered %d: %s", r.Offered, r.Sent, n.Commands.Sent, n.Snapshots.Sent, r.Delivered, r.Causes)
	}
	for _, s := range []Stream{n.Commands, n.Snapshots} {
		if s.Delivered != s.Sent || s.Sent == 0 || s.LossRatio != 0 || s.Latency.Samples != s.Delivered || s.Latency.Min <= 0 {
			t.Errorf("stream %+v", s)
		}
	}
	if r.Duplicated+r.Late+r.Corrupt+r.Misdelivered+r.Reordered+n.Late+n.Ended+n.Unsaid != 0 || len(r.Errors) != 0 {
		t.Errorf("%+v, errors %v", n, r.Errors)
	}
	if int(n.Connect.Samples) != n.Players || n.Players != r.Load.Matches*r.Load.Players || n.TickRate != 30 {
		t.Errorf("%d players at %v, %d connected", n.Players, n.TickRate, n.Connect.Samples)
	}
	if n.Datagrams < r.Sent || n.DatagramBytes < n.Datagrams*10 {
		t.Errorf("%d datagrams of %d bytes for %d messages", n.Datagrams, n.DatagramBytes, r.Sent)
	}
}

func TestNetcodeDirect(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain":      func(*Config) {},
		"fragmented": func(c *Config) { c.Snapshot = 5000 },
		"at once":    func(c *Config) { c.Align = AlignTick },
		"one pair":   func(c *Config) { c.Matches, c.Players, c.Rate = 1, 1, 60 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := matchesConfig()
			change(&cfg)
			r := run(t, cfg, benchrig.Direct{Header: benchrig.DefaultHeader})
			checkMatches(t, r)
			// A snapshot of 600 bytes with 18 of package netcode, 10 of the transport and the header.
			if want := 600 + 18 + 10 + benchrig.DefaultHeader; name == "plain" && r.WireBytes != want {
				t.Errorf("%d bytes, want %d", r.WireBytes, want)
			}
		})
	}
}

// newNetplayTestbed returns a bed, a generator and the matches that it plays, without a relay.
func newNetplayTestbed(t *testing.T, cfg *Config) (*testbed, *generator, *netplay) {
	t.Helper()
	b := &testbed{cfg: *cfg, dialect: benchrig.Direct{Header: benchrig.DefaultHeader}, plan: planOf(t, *cfg)}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.rig.Close() })
	play, err := newNetplay(t.Context(), cfg, b.rig)
	if err != nil {
		t.Fatal(err)
	}
	g := newGenerator(cfg, b.rig, 1)
	g.play, play.send = play, g.sender.queueDriverPacket
	return b, g, play
}

// TestNetcodeCatchesUp: what a generator that fell behind says late is still said,
// each message for itself.
func TestNetcodeCatchesUp(t *testing.T) {
	cfg := matchesConfig()
	cfg.Warmup = -1
	cfg, err := cfg.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	b, g, _ := newNetplayTestbed(t, &cfg)
	for sock.Now() < g.times.end {
		time.Sleep(time.Millisecond) // The generator was not there.
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := Result{Load: cfg.load(&b.plan), Errors: map[string]uint64{}}
	g.collect(&r, newObserver(g, 0))
	checkMatches(t, r)
}

func TestNetcodeRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no rate":      func(c *Config) { c.Rate = 0 },
		"closed loop":  func(c *Config) { c.Rate, c.Window = 0, 1 },
		"one way":      func(c *Config) { c.Direction = DirectionUp },
		"no stamp":     func(c *Config) { c.Snapshot = stampLen - 1 },
		"too large":    func(c *Config) { c.Snapshot = maxSnapshot + 1 },
		"other shapes": func(c *Config) { c.Shape, c.Snapshot = ShapeStar, 100 },
	} {
		cfg := matchesConfig()
		change(&cfg)
		if _, err := Run(t.Context(), cfg, benchrig.Direct{Header: benchrig.DefaultHeader}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Run(t.Context(), matchesConfig(), benchrig.Direct{}); !errors.Is(err, ErrConfig) {
		t.Errorf("a header that tells nothing: %v", err)
	}
}

func TestNetcodeAllocs(t *testing.T) {
	cfg := matchesConfig()
	cfg.Rate, cfg.Warmup, cfg.Duration = 20_000, -1, time.Minute
	cfg, err := cfg.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	b := &testbed{cfg: cfg, dialect: benchrig.Direct{Header: benchrig.DefaultHeader}, plan: planOf(t, cfg)}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer b.rig.Close()
	skipIfAllocating(t)
	play, err := newNetplay(t.Context(), &cfg, b.rig)
	if err != nil {
		t.Fatal(err)
	}
	g := newGenerator(&cfg, b.rig, 1)
	g.play, play.send = play, g.sender.queueDriverPacket
	round := func() {
		if _, err := g.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for sock.Now() < g.times.start+int64(100*time.Millisecond) {
		round() // until every buffer is there
	}
	before := g.recorder.portions[1].delivered
	if allocs := testing.AllocsPerRun(500, round); allocs != 0 {
		t.Errorf("%v allocations per round", allocs)
	}
	if g.recorder.portions[1].delivered == before {
		t.Error("no message arrived")
	}
}

// TestNetcodeLosesItsRelay: connections that end are reported, and do not count as a limit of
// the generator.
func TestNetcodeLosesItsRelay(t *testing.T) {
	cfg, err := matchesConfig().withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	_, g, play := newNetplayTestbed(t, &cfg)
	play.drivers[0].conns[1].Disconnect(0, "")
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var r Result
	r.Errors = map[string]uint64{}
	g.collect(&r, newObserver(g, 0))
	r.Generator = Generator{} // It may have been late, which is not asked here.
	r.findCauses(&cfg)
	if r.Netcode.Ended != 2 || r.Netcode.Unsaid == 0 || !r.CausedBy(LimitServer) || r.Errors["connection ended: closed by remote"] != 1 {
		t.Errorf("%+v, errors %v, causes %v", r.Netcode, r.Errors, r.Causes)
	}
}
