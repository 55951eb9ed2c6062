package ctl

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
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
	reloadedTable(&out, &operator.ReloadResult{
		Changed: []operator.SettingChange{{Key: "tokens", Was: "1 entries", Now: "2 entries"}},
		Restart: []operator.SettingChange{{Key: "region", Was: "a", Now: "b"}}, Notes: []string{"the certificate"},
	})
	for _, want := range []string{"tokens   1 entries  2 entries  now\n", "region   a          b          after a restart\n",
		"the certificate\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
