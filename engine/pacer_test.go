package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// sleepingPacer returns a pacer that has learned that sleeps pay.
func sleepingPacer(bound time.Duration) pacer {
	p := newPacer(bound, 64)
	p.gain, p.sleeping = maxGain, true
	return p
}

// TestPacer: a worker sleeps at a steady middling load, and neither when idle nor when
// the queue is deep.
func TestPacer(t *testing.T) {
	const bound = 200 * time.Microsecond
	for _, tt := range []struct {
		name   string
		every  int64 // nanoseconds between batches, with the sleep
		n      int64 // datagrams per batch
		sleeps bool
	}{
		{"20,000/s one by one", 50_000, 1, true},
		{"20,000/s after sleeps", 200_000, 4, true},
		{"idle: 1,000/s", 1_000_000, 1, false},
		{"5,000/s one by one gathers too few", 200_000, 1, false},
		{"deep queue", 100_000, 32, false},
		{"bursts of a tick in one batch", 33_000_000, 20, false},
	} {
		p := sleepingPacer(bound)
		now, sleeps := int64(1e9), 0
		for range 200 {
			now += tt.every
			if d := p.delayAfter(now, tt.n); d > 0 {
				sleeps++
				if d > bound.Nanoseconds() {
					t.Fatalf("%s: sleeps %d ns", tt.name, d)
				}
			}
		}
		if got := sleeps > 100; got != tt.sleeps {
			t.Errorf("%s: slept %d times of 200", tt.name, sleeps)
		}
	}
}

// TestPacerBurst: the first datagrams after a pause do not wait, and the rest comes together.
func TestPacerBurst(t *testing.T) {
	p := sleepingPacer(100 * time.Microsecond)
	now := int64(1e9)
	for range 3 {
		now += 33_000_000
		if d := p.delayAfter(now, 1); d != 0 {
			t.Errorf("slept %d ns after the first datagram", d)
		}
		for range 15 {
			now += 3_000
			p.delayAfter(now, 1)
		}
		now += 3_000
		d := p.delayAfter(now, 1)
		if d == 0 {
			t.Error("did not sleep in the middle of a burst")
		}
		now += 2 * d
		if p.delayAfter(now, 16) == 0 {
			t.Error("did not sleep although the burst may go on")
		}
	}
}

// TestPacerLonePing: no datagram of an idle relay leads to a sleep, right after a busy time too.
func TestPacerLonePing(t *testing.T) {
	p := sleepingPacer(100 * time.Microsecond)
	now := int64(1e9)
	for range 100 {
		now += 10_000
		p.delayAfter(now, 1)
	}
	for range 5 {
		now += 1e9
		if d := p.delayAfter(now, 1); d != 0 {
			t.Errorf("slept %d ns after a lone datagram", d)
		}
	}
}

// TestPacerOversleep: a sleep, the usual oversleep and the batch after it last as long as
// the bound, and there is no sleep where the oversleep alone lasts as long.
func TestPacerOversleep(t *testing.T) {
	const bound = 100_000
	for _, over := range []int64{5_000, 60_000, 150_000} {
		p := sleepingPacer(bound)
		now, last := int64(1e9), int64(0)
		for range 100 {
			elapsed := int64(20_000)
			if last > 0 {
				elapsed = last + over
			}
			now += elapsed
			last = p.delayAfter(now, max(1, elapsed/20_000))
		}
		switch {
		case over >= bound && last > 0:
			t.Errorf("sleeps %d ns with an oversleep of %d", last, over)
		case over < bound && (last == 0 || last+over < bound*95/100 || last+over > bound*105/100):
			t.Errorf("sleeps %d ns with an oversleep of %d, which is not %d", last, over, bound)
		}
	}
}

func TestPacerAllocates(t *testing.T) {
	p := sleepingPacer(100 * time.Microsecond)
	if n := testing.AllocsPerRun(1000, func() {
		p.delayAfter(sock.Now(), 4)
		p.nextPeriod(sock.ThreadTime())
		p.datagrams = 1
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// machine is a cost model: what a wake-up by a datagram and one by a timer, a batch and a
// datagram cost, and the mean of the oversleep, in nanoseconds. At rates in gains, per
// second, sleeps of 100 µs save at least an eighth.
type machine struct {
	name                             string
	wake, timer, batch, packet, over int64
	gains                            []float64
}

var machines = []machine{
	{"hardware", 3_000, 3_000, 1_500, 1_200, 4_000, []float64{20e3, 50e3, 100e3, 150e3, 200e3, 300e3}},
	{"guest", 15_000, 20_000, 3_000, 4_000, 35_000, []float64{50e3}},
	{"guest with dear timers", 4_000, 30_000, 2_000, 2_500, 35_000, nil},
	{"coarse timers", 4_000, 4_000, 2_000, 2_500, 150_000, nil},
}

type paced struct {
	cpu, p50, p99   int64 // ns; CPU per datagram, latency
	batches, sleeps int
}

func (m machine) run(arrivals []int64, p pacer, rng *rand.Rand) (r paced) {
	latencies := make([]int64, 0, len(arrivals))
	var now int64
	for i := 0; i < len(arrivals); {
		if arrivals[i] > now {
			now = arrivals[i] + m.wake
			r.cpu += m.wake
		}
		n := 0
		for ; n < 64 && i+n < len(arrivals) && arrivals[i+n] <= now; n++ {
		}
		spent := m.batch + int64(n)*m.packet
		now += spent
		r.cpu += spent
		for _, at := range arrivals[i : i+n] {
			latencies = append(latencies, now-at)
		}
		i += n
		r.batches++
		if p.bound == 0 {
			continue
		}
		if p.isPeriodOver() {
			p.nextPeriod(r.cpu)
		}
		if d := p.delayAfter(now, int64(n)); d > 0 {
			now += d + m.over/2 + int64(rng.ExpFloat64()*float64(m.over/2))
			r.cpu += m.timer
			r.sleeps++
		}
	}
	slices.Sort(latencies)
	r.cpu /= int64(len(arrivals))
	r.p50, r.p99 = latencies[len(latencies)/2], latencies[len(latencies)*99/100]
	return r
}

func poisson(rate float64, n int, rng *rand.Rand) []int64 {
	at, now := make([]int64, n), 0.0
	for i := range at {
		now += rng.ExpFloat64() / rate * 1e9
		at[i] = int64(now)
	}
	return at
}

// tickedMatches returns the times of n datagrams or a few more. Each match sends one per
// player within spread nanoseconds, hz times a second, at a phase of its own.
func tickedMatches(matches, players int, hz float64, spread int64, n int, rng *rand.Rand) []int64 {
	at := make([]int64, 0, n)
	phases := make([]int64, matches)
	for i := range phases {
		phases[i] = int64(rng.Float64() / hz * 1e9)
	}
	for k := 0; len(at) < n; k++ {
		for _, phase := range phases {
			for range players {
				at = append(at, phase+int64(float64(k)/hz*1e9)+rng.Int64N(spread))
			}
		}
	}
	slices.Sort(at)
	return at
}

// TestPacerSimulation: a pacer costs hardly any CPU or latency, and there is a gain where possible.
func TestPacerSimulation(t *testing.T) {
	testkit.OneGoroutine(t)
	const (
		bound = 100 * time.Microsecond
		count = 150_000
	)
	type load struct {
		name     string
		arrivals func(rng *rand.Rand) []int64
		rate     float64 // of a Poisson process
	}
	var loads []load
	for _, rate := range []float64{1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 150e3, 200e3, 300e3} {
		loads = append(loads, load{fmt.Sprintf("%.0f/s", rate), func(rng *rand.Rand) []int64 { return poisson(rate, count, rng) }, rate})
	}
	for _, hz := range []float64{20, 30, 60} {
		loads = append(loads,
			load{fmt.Sprintf("20 matches of 10 at %.0f Hz", hz),
				func(rng *rand.Rand) []int64 { return tickedMatches(20, 10, hz, 100_000, count, rng) }, 0},
			load{fmt.Sprintf("1 match of 20 at %.0f Hz", hz),
				func(rng *rand.Rand) []int64 { return tickedMatches(1, 20, hz, 50_000, count, rng) }, 0})
	}
	loads = append(loads, load{"a star of 10, all at once",
		func(rng *rand.Rand) []int64 { return tickedMatches(1, 10, 60, 1000, count, rng) }, 0})
	for _, m := range machines {
		for _, l := range loads {
			arrivals := l.arrivals(rand.New(rand.NewPCG(1, 2)))
			off := m.run(arrivals, pacer{}, nil)
			on := m.run(arrivals, newPacer(bound, 64), rand.New(rand.NewPCG(3, 4)))
			ratio, share := float64(on.cpu)/float64(off.cpu), float64(on.sleeps)/float64(on.batches)
			t.Logf("%-22s %-26s CPU %5.2f µs for %5.2f: %.2f  p50 %6.1f for %6.1f  p99 %7.1f for %7.1f µs  sleeps after %3.0f %% of the batches", m.name, l.name,
				float64(on.cpu)/1e3, float64(off.cpu)/1e3, ratio, float64(on.p50)/1e3, float64(off.p50)/1e3, float64(on.p99)/1e3,
				float64(off.p99)/1e3, 100*share)
			if ratio > 1.04 {
				t.Errorf("%s, %s: %.2f times the CPU of a worker that never sleeps", m.name, l.name, ratio)
			}
			if added := on.p99 - off.p99; added > bound.Nanoseconds()*5/4+2*m.over {
				t.Errorf("%s, %s: adds %d ns to p99", m.name, l.name, added)
			}
			if l.rate == 0 {
				continue
			}
			full := l.rate*float64(m.packet) > 0.95e9
			switch {
			case (l.rate <= 2e3 || full) && share > 0.01:
				t.Errorf("%s, %s: sleeps after %.0f %% of the batches", m.name, l.name, 100*share)
			case slices.Contains(m.gains, l.rate) && ratio > 0.875:
				t.Errorf("%s, %s: gains nothing (%.2f)", m.name, l.name, ratio)
			}
		}
	}
}
