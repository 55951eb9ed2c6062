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
		{"20,000/s one by one", delay, 50_000, 1, true},
		{"20,000/s after rests", delay, 200_000, 4, true},
		{"idle: 1,000/s", delay, 1_000_000, 1, false},
		{"5,000/s one by one gathers too few", delay, 200_000, 1, false},
		{"deep queue", delay, 100_000, 32, false},
		{"bursts of a tick", delay, 33_000_000, 20, false},
	} {
		p := pacer{delay: tt.delay, deep: 32}
		now, rests := int64(1e9), 0
		for range 200 {
			now += tt.every
			if p.delayAfter(now, tt.n) > 0 {
				rests++
			}
		}
		if got := rests > 100; got != tt.rests {
			t.Errorf("%s: rested %d times of 200", tt.name, rests)
		}
	}
}

// TestPacerBurst: of a burst after a pause the first datagram does not wait, and
// the rest of it comes together.
func TestPacerBurst(t *testing.T) {
	p := pacer{delay: 100_000, deep: 32}
	now := int64(1e9)
	for range 3 {
		now += 33_000_000
		if d := p.delayAfter(now, 1); d != 0 {
			t.Errorf("rested %v after the first datagram", d)
		}
		now += 3_000
		if p.delayAfter(now, 1) == 0 {
			t.Error("did not rest in the middle of a burst")
		}
		now += 150_000
		if d := p.delayAfter(now, 8); d == 0 {
			t.Error("did not rest although the burst may go on")
		}
	}
}
