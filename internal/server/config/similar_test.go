package config

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"relay", "relay", 0}, {"wrokers", "workers", 1}, {"udp", "http", 3}, {"ab", "ba", 1},
		{"abcd", "acbde", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestSimilar: a single letter is similar to no other one.
func TestSimilar(t *testing.T) {
	names := []string{"region", "c", "max_seats", "max_allocations"}
	for typed, want := range map[string]string{"max_seat": "max_seats", "regoin": "region", "max-seats": "max_seats", "x": "", "port": ""} {
		if got := Similar(typed, names); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
