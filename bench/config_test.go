package bench

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

func planOf(t *testing.T, cfg Config) benchrig.Plan {
	t.Helper()
	cfg, err := cfg.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanAddresses(t *testing.T) {
	pairs := planOf(t, Config{Matches: 1000})
	for i, want := range map[int]string{0: "127.1.0.0", 1: "127.1.0.1", 2: "127.1.0.2", 255: "127.1.0.255", 256: "127.1.1.0",
		1999: "127.1.7.207"} {
		if got := pairs.Addr(i); got.String() != want {
			t.Errorf("pair: endpoint %d is %v, want %s", i, got, want)
		}
	}
	star := planOf(t, Config{Shape: ShapeStar, Matches: 300, Players: 10})
	for i, want := range map[int]string{0: "127.1.0.0", 10: "127.1.0.10", 11: "127.1.1.0", 12: "127.1.1.1", 11*256 + 3: "127.2.0.3"} {
		if got := star.Addr(i); got.String() != want {
			t.Errorf("star: endpoint %d is %v, want %s", i, got, want)
		}
	}
	lab := planOf(t, Config{Matches: 4, Endpoints: EndpointConfig{Sources: netip.MustParsePrefix("10.128.0.0/24")}})
	if got := lab.Addr(7); got.String() != "10.128.0.7" {
		t.Errorf("sources of its own: endpoint 7 is %v", got)
	}
	single := planOf(t, Config{Matches: 4, Endpoints: EndpointConfig{Sources: netip.MustParsePrefix("10.0.0.9/32")}})
	if single.Addr(5).String() != "10.0.0.9" || single.Socket(5) != 5 || single.Sockets != 8 {
		t.Errorf("a single address: %v on socket %d of %d", single.Addr(5), single.Socket(5), single.Sockets)
	}
}

// TestPlanLinks verifies that every link is between a host and a player of one
// match, and the groups of the links.
func TestPlanLinks(t *testing.T) {
	for _, cfg := range []Config{
		{Matches: 7},
		{Shape: ShapeStar, Matches: 3, Players: 5},
		{Shape: ShapeStar, Matches: 3, Players: 5, Direction: DirectionUp},
		{Shape: ShapeStar, Matches: 3, Players: 5, Direction: DirectionDown},
	} {
		p := planOf(t, cfg)
		seen := map[[2]int]bool{}
		group := 0
		for i, l := range p.Flows {
			seen[[2]int{l.From, l.To}] = true
			player := max(l.From, l.To)
			up := l.From == player
			if p.Host(player) != min(l.From, l.To) || p.Host(player) == player {
				t.Errorf("%+v: link %+v is not of one match", cfg, l)
			}
			if cfg.Direction == DirectionUp && !up || cfg.Direction == DirectionDown && up {
				t.Errorf("%+v: link %+v goes the other way", cfg, l)
			}
			if l.Group != group && (l.Group != group+1 || i == 0) {
				t.Errorf("%+v: group %d follows %d", cfg, l.Group, group)
			}
			group = l.Group
			want := i // Each flow has its own.
			if cfg.Shape == ShapeStar {
				want, _ = p.Match(l.From)
			}
			if group != want {
				t.Errorf("%+v: link %d is of group %d", cfg, i, group)
			}
		}
		want := p.Matches * p.Players
		if cfg.Direction == "" {
			want *= 2
		}
		if len(seen) != want || len(p.Flows) != want {
			t.Errorf("%+v: %d links, %d of them different, want %d", cfg, len(p.Flows), len(seen), want)
		}
	}
}

func TestPlanSockets(t *testing.T) {
	p := planOf(t, Config{Shape: ShapeIdle, Matches: 100_000})
	if p.Sockets != 7 {
		t.Errorf("%d sockets", p.Sockets)
	}
	most, count, last := 0, 0, -1
	for i := range p.Len() {
		s := p.Socket(i)
		if s != last {
			if s != last+1 || i%2 != 0 {
				t.Fatalf("endpoint %d is on socket %d after %d", i, s, last)
			}
			last, count = s, 0
		}
		count++
		most = max(most, count)
	}
	if last != 6 || most > 1<<15 {
		t.Errorf("%d sockets, up to %d endpoints on one", last+1, most)
	}
}

// TestDialects: a dialect is chosen by its name, and what it cannot do without is an error.
func TestDialects(t *testing.T) {
	relay := netip.MustParseAddrPort("127.0.0.1:9")
	for want, cfg := range map[string]DialectConfig{
		"ferry": {BaseURL: "http://127.0.0.1:9"}, "turn": {Name: DialectTURN, Relay: relay},
		"mine":   {Name: DialectSwap, Relay: relay, Label: "mine"},
		"direct": {Name: DialectDirect},
	} {
		if d, err := NewDialect(cfg); err != nil || d.Name() != want {
			t.Errorf("%s: %q, %v", want, d.Name(), err)
		}
	}
	for name, cfg := range map[string]DialectConfig{
		"none": {Name: "latin"}, "no URL": {}, "no server": {Name: DialectTURN}, "no relay": {Name: DialectSwap},
	} {
		if d, err := NewDialect(cfg); !errors.Is(err, ErrConfig) || d.Name() != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Run(t.Context(), Config{}, Dialect{}); !errors.Is(err, ErrConfig) {
		t.Errorf("no dialect: %v", err)
	}
}

func TestConfigRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"shape":       {Shape: "cube"},
		"direction":   {Direction: "left"},
		"payload":     {Payload: stampLen - 1},
		"large":       {Payload: maxPayload + 1},
		"players":     {Shape: ShapeStar, Players: 256},
		"both loops":  {Rate: 1, Window: 1},
		"idle rate":   {Shape: ShapeIdle, Rate: 1},
		"window":      {Window: maxWindow, Matches: 200},
		"rate":        {Rate: -1},
		"duration":    {Duration: 2 * time.Hour},
		"traffic":     {Traffic: "chess"},
		"churn":       {Shape: ShapeChurn, Churn: ChurnLoad{SessionRate: 1}}, // Direct cannot play sessions.
		"family":      {Endpoints: EndpointConfig{Sources: netip.MustParsePrefix("fd00::/8"), Family: FamilyIPv4}},
		"no family":   {Endpoints: EndpointConfig{Family: "ipv5"}},
		"transport":   {Endpoints: EndpointConfig{Transport: "tcp"}},
		"without TCP": {Endpoints: EndpointConfig{Transport: TransportWS}}, // Direct has no connections.
		"own sockets": {Endpoints: EndpointConfig{Sources: netip.MustParsePrefix("10.0.0.1/32")}, Matches: 513},
	} {
		if _, err := cfg.withDefaults(benchrig.Direct{}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	small := EndpointConfig{Sources: netip.MustParsePrefix("10.128.0.0/24")}
	cfg, err := Config{Matches: 200, Endpoints: small}.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.plan(); !errors.Is(err, ErrConfig) {
		t.Errorf("400 endpoints in 256 addresses: %v", err)
	}
}
