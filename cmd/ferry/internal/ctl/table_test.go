package ctl

import (
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

func TestFormats(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := group(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 30: "3.0 GiB", 1<<63 + 1: "8192.0 PiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0.0s", 59.94: "59.9s", 61: "1m1s", 3600: "1h0m", 47 * 3600: "47h0m", 72 * 3600: "3d"} {
		if got := age(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
}

// TestTables: no text from a relay moves the terminal's cursor or adds a
// cell.
func TestTables(t *testing.T) {
	var out strings.Builder
	err := usageTable(&out, &operator.Usage{Projects: []operator.ProjectUsage{
		{Project: "a\x1b[2J\tb\nc", Environment: "é", Players: 2, PlayerSeconds: 1234.9, Bytes: 2048},
		{Tenant: "00000000000000ff", Datagrams: 1000}, {Others: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PROJECT           ALLOCATIONS  HOSTS  PLAYERS  PLAYER-SECONDS  DATAGRAMS  BYTES",
		"a?[2J?b?c/é       0            0      2        1,234           0          2.0 KiB",
		"00000000000000ff  0            0      0        0               1,000      0 B",
		"(all others)      0            0      0        0               0          0 B",
	}
	if lines := strings.Split(out.String(), "\n"); strings.Join(lines[:4], "\n") != strings.Join(want, "\n") {
		t.Errorf("\n%s\nwant\n%s", out.String(), strings.Join(want, "\n"))
	}
	out.Reset()
	reloadedTable(&out, &admin.ReloadResult{
		Changed: []config.Change{{Key: "tokens", Was: "1 entries", Now: "2 entries"}},
		Restart: []config.Change{{Key: "region", Was: "a", Now: "b"}}, Notes: []string{"the certificate"},
	})
	for _, want := range []string{"tokens   1 entries  2 entries  now\n", "region   a          b          after a restart\n",
		"the certificate\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// TestTopScreen: rates are differences by time, and a restarted process begins
// at zero.
func TestTopScreen(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int, datagrams, bytes, drops uint64) look {
		now := start.Add(time.Duration(seconds) * time.Second)
		return look{
			took: now,
			stats: operator.Stats{
				Now: now, Since: start, Allocations: 1500, Received: datagrams, ReceivedBytes: bytes,
				Outcomes: map[string]uint64{"relayed": datagrams, "bound": 4}, Drops: map[string]uint64{"seal": drops, "rate": drops / 2},
			},
			usage: operator.Usage{Projects: []operator.ProjectUsage{
				{Project: "quiet", Environment: "e", Tenant: "1"}, {Project: "busy", Environment: "e", Tenant: "2", Datagrams: datagrams, Bytes: bytes},
			}},
		}
	}
	a, b := at(10, 1000, 1<<20, 0), at(14, 5000, 5<<20, 40)
	var out strings.Builder
	p := topPage{url: "http://x", last: a, now: b, order: byBytes, drops: topDrops, projects: topProjects}
	if err := p.draw(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"allocations   1,500", "1,000/s", "1.0 MiB/s", "seal     10/s  40", "rate     5/s   20",
		"rates of the last 4.0s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if busy, quiet := strings.Index(out.String(), "busy/e"), strings.Index(out.String(), "quiet/e"); busy < 0 || quiet < busy {
		t.Errorf("the busiest project is not the first:\n%s", out.String())
	}
	if r := (rates{4}); r.of(5, 3) != 0 || (rates{}).of(0, 5) != 0 {
		t.Error("a rate of counts that went back, or of no time")
	}
}
