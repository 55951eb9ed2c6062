package engine

import "testing"

// TestPacer: a worker rests at a steady middling load, and neither when idle
// nor when the queue is deep.
func TestPacer(t *testing.T) {
	const delay = 200_000
	for _, tt := range []struct {
		name  string
		delay int64
		every int64 // nanoseconds between batches, the rest included
		n     int   // datagrams per batch
		rests bool
	}{
		{"off", 0, 50_000, 1, false},
		{"20,000/s one by one", delay, 50_000, 1, true},
		{"20,000/s after rests", delay, 200_000, 4, true},
		{"idle: 1,000/s", delay, 1_000_000, 1, false},
		{"5,000/s gathers too few", delay, 200_000, 1, false},
		{"deep queue", delay, 100_000, 32, false},
		{"bursts of a tick", delay, 33_000_000, 20, false},
	} {
		p := pacer{delay: tt.delay, deep: 32}
		now, rests := int64(1e9), 0
		for range 200 {
			now += tt.every
			if p.rest(now, tt.n) > 0 {
				rests++
			}
		}
		if got := rests > 100; got != tt.rests {
			t.Errorf("%s: rested %d times of 200", tt.name, rests)
		}
	}
}

// TestPacerWakesUp: after a pause the first datagrams are not kept waiting.
func TestPacerWakesUp(t *testing.T) {
	p := pacer{delay: 200_000, deep: 32}
	now := int64(1e9)
	for range 100 {
		now += 50_000
		p.rest(now, 1)
	}
	idle := 0
	for range 20 {
		now += 50_000_000
		if p.rest(now, 1) > 0 {
			idle++
		}
	}
	if idle > 8 {
		t.Errorf("rested %d times while idle", idle)
	}
}
