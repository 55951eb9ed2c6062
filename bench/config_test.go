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
	pairs := planOf(t, Config{Load: Load{Matches: 1000}})
	for i, want := range map[int]string{0: "127.1.0.0", 1: "127.1.0.1", 2: "127.1.0.2", 255: "127.1.0.255", 256: "127.1.1.0",
		1999: "127.1.7.207"} {
		if got := pairs.Addr(i); got.String() != want {
			t.Errorf("pair: endpoint %d is %v, want %s", i, got, want)
		}
	}
	star := planOf(t, Config{Load: Load{Shape: shapeStar, Matches: 300, Players: 10}})
	for i, want := range map[int]string{0: "127.1.0.0", 10: "127.1.0.10", 11: "127.1.1.0", 12: "127.1.1.1", 11*256 + 3: "127.2.0.3"} {
		if got := star.Addr(i); got.String() != want {
			t.Errorf("star: endpoint %d is %v, want %s", i, got, want)
		}
	}
	lab := planOf(t, Config{Load: Load{Matches: 4}, Sources: netip.MustParsePrefix("10.128.0.0/24")})
	if got := lab.Addr(7); got.String() != "10.128.0.7" {
		t.Errorf("sources of its own: endpoint 7 is %v", got)
	}
	single := planOf(t, Config{Load: Load{Matches: 4}, Sources: netip.MustParsePrefix("10.0.0.9/32")})
	if single.Addr(5).String() != "10.0.0.9" || single.Socket(5) != 5 || single.Sockets != 8 {
		t.Errorf("a single address: %v on socket %d of %d", single.Addr(5), single.Socket(5), single.Sockets)
	}
}

// TestPlanLinks verifies that every link is between a host and a player of one
// match, and the groups of the links.
func TestPlanLinks(t *testing.T) {
	for _, cfg := range []Config{
		{Load: Load{Matches: 7}},
		{Load: Load{Shape: shapeStar, Matches: 3, Players: 5}},
		{Load: Load{Shape: shapeStar, Matches: 3, Players: 5, Direction: directionUp}},
		{Load: Load{Shape: shapeStar, Matches: 3, Players: 5, Direction: directionDown}},
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
			if cfg.Direction == directionUp && !up || cfg.Direction == directionDown && up {
				t.Errorf("%+v: link %+v goes the other way", cfg, l)
			}
			if l.Group != group && (l.Group != group+1 || i == 0) {
				t.Errorf("%+v: group %d follows %d", cfg, l.Group, group)
			}
			group = l.Group
			want := i // Each flow has its own.
			if cfg.Shape == shapeStar {
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
	p := planOf(t, Config{Load: Load{Shape: shapeIdle, Matches: 100_000}})
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
		"ferry": {BaseURL: "http://127.0.0.1:9"}, "turn": {Name: dialectTURN, Relay: relay},
		"swap":   {Name: dialectSwap, Relay: relay},
		"direct": {Name: dialectDirect},
	} {
		if d, err := NewDialect(cfg); err != nil || d.Name() != want {
			t.Errorf("%s: %q, %v", want, d.Name(), err)
		}
	}
	for name, cfg := range map[string]DialectConfig{
		"none": {Name: "latin"}, "no URL": {}, "no server": {Name: dialectTURN}, "no relay": {Name: dialectSwap},
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
		"shape":       {Load: Load{Shape: "cube"}},
		"direction":   {Load: Load{Direction: "left"}},
		"payload":     {Load: Load{Payload: stampLen - 1}},
		"large":       {Load: Load{Payload: maxPayload + 1}},
		"players":     {Load: Load{Shape: shapeStar, Players: 256}},
		"both loops":  {Load: Load{Rate: 1, Window: 1}},
		"idle rate":   {Load: Load{Shape: shapeIdle, Rate: 1}},
		"window":      {Load: Load{Window: maxWindow, Matches: 200}},
		"rate":        {Load: Load{Rate: -1}},
		"duration":    {Load: Load{Duration: 2 * time.Hour}},
		"traffic":     {Load: Load{Traffic: "chess"}},
		"churn":       {Load: Load{Shape: shapeChurn, SessionRate: 1}}, // Direct cannot play sessions.
		"family":      {Load: Load{Family: benchrig.FamilyIPv4}, Sources: netip.MustParsePrefix("fd00::/8")},
		"no family":   {Load: Load{Family: "ipv5"}},
		"transport":   {Load: Load{Transport: "tcp"}},
		"without TCP": {Load: Load{Transport: benchrig.TransportWS}}, // Direct has no connections.
		"own sockets": {Load: Load{Matches: 513}, Sources: netip.MustParsePrefix("10.0.0.1/32")},
	} {
		if _, err := cfg.withDefaults(benchrig.Direct{}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg, err := Config{Load: Load{Matches: 200}, Sources: netip.MustParsePrefix("10.128.0.0/24")}.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.plan(); !errors.Is(err, ErrConfig) {
		t.Errorf("400 endpoints in 256 addresses: %v", err)
	}
}
