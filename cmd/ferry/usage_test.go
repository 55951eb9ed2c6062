package main

import (
	"strings"
	"testing"
)

// TestPlainErrors: errors of the command line name options as they are typed, and what to type.
func TestPlainErrors(t *testing.T) {
	for args, want := range map[string]string{
		"dev --workers x":    `--workers: "x" is not a whole number`,
		"bench --rate abc":   `--rate: "abc" is not a number`,
		"bench --duration 5": `--duration: "5" is not a time with its unit, such as 500ms, 10s or 5m`,
		"dev --wrokers 3":    "there is no option --wrokers; did you mean --workers?",
		"dev --nonsense 3":   "there is no option --nonsense\n",
		"dev --workers":      "--workers: its value is missing",
		"ctl alocations":     `ctl has no command "alocations"; did you mean allocations?`,
		"ctl sing":           "ctl has no command \"sing\"\n",
		"sevre":              `unknown command "sevre"; did you mean serve?`,
		"bench --shape ring": `shape "ring" is not one of pairs, star, hot, churn, idle, netcode`,
	} {
		code, _, stderr := ferry(t.Context(), strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.Contains(stderr, "strconv") {
			t.Errorf("ferry %s: exit code %d\n%s", args, code, stderr)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"relay", "relay", 0}, {"wrokers", "workers", 1}, {"udp", "http", 3}, {"ab", "ba", 1}, {"abcd", "acbde", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
