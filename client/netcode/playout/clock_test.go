package playout_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/playout"
)

const ms = time.Millisecond

func newClock(t testing.TB, tick, minDelay, maxDelay time.Duration) *playout.Clock {
	t.Helper()
	c, err := playout.NewClock(tick, minDelay, maxDelay)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewClock(t *testing.T) {
	for _, args := range [][3]time.Duration{
		{}, {-1}, {time.Second + 1}, {1, -1}, {1, 0, -1}, {1, time.Second}, {1, 2, 1},
	} {
		if _, err := playout.NewClock(args[0], args[1], args[2]); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// TestClockExact: without jitter the delay falls to one interval of snapshots, and the shown time is
// exact, across the wrap of ticks.
func TestClockExact(t *testing.T) {
	const tick = 20 * ms
	c := newClock(t, tick, 0, 0)
	start := time.Unix(1000, 0)
	if _, _, ok := c.At(start); ok {
		t.Error("a time before the first snapshot")
	}
	first := uint32(math.MaxUint32 - 100)
	for i := range 1000 {
		now := start.Add(time.Duration(i) * tick)
		if i%2 == 0 { // snapshots every 40 ms
			c.Snapshot(first+uint32(i), now)
			c.Snapshot(first+uint32(i)-2, now)
			c.Snapshot(first+uint32(i), now.Add(tick/2)) // It is not newer.
		}
		if at, fraction, ok := c.At(now); i == 0 && (at != first-5 || fraction != 0 || !ok) {
			t.Errorf("begins at %d+%v, not 100 ms before the first snapshot", int32(at-first), fraction)
		}
	}
	at, fraction, _ := c.At(start.Add(999*tick + 5*ms))
	if want := first + 997; at != want || math.Abs(fraction-0.25) > 0.001 {
		t.Errorf("shows %d+%v, want %d+0.25", at, fraction, want)
	}
	if st := c.Stats(); st.Delay.Round(ms) != 40*ms || c.Target() != 40*ms || st.Jitter != 0 || st.Held != 0 || st.Resets != 0 {
		t.Errorf("%+v, target %v", st, c.Target())
	}
}

// TestClockBounds: the delay stays within its bounds, whatever the jitter.
func TestClockBounds(t *testing.T) {
	for _, test := range []struct {
		jitter   time.Duration
		min, max time.Duration
		want     time.Duration
	}{
		{0, 70 * ms, 0, 70 * ms},
		{150 * ms, 0, 60 * ms, 60 * ms},
	} {
		c := newClock(t, 20*ms, test.min, test.max)
		start := time.Unix(1000, 0)
		for i := range 400 {
			late := test.jitter * time.Duration(i%4) / 4
			now := start.Add(time.Duration(i)*20*ms + late)
			c.Snapshot(uint32(i), now)
			c.At(now)
		}
		if got := c.Target(); got != test.want {
			t.Errorf("%+v: target %v", test, got)
		}
	}
}

// steady returns a clock after 100 snapshots that came every 20 ms, each tenth 15 ms late, and the
// time of the next one.
func steady(t *testing.T) (*playout.Clock, time.Time) {
	t.Helper()
	c := newClock(t, 20*ms, 0, 200*ms)
	now := time.Unix(1000, 0)
	for i := range 100 {
		late := time.Duration(0)
		if i%10 == 5 {
			late = 15 * ms
		}
		c.Snapshot(uint32(i), now.Add(late))
		c.At(now.Add(late))
		now = now.Add(20 * ms)
	}
	return c, now
}

// TestClockLatencyFalls: when snapshots come much earlier, the shown time runs 5 % faster, and if the
// delay is too long by far it is cut short at once.
func TestClockLatencyFalls(t *testing.T) {
	c, now := steady(t)
	c.Snapshot(114, now) // 280 ms of latency are gone
	at, fraction, _ := c.At(now)
	for range 10 {
		now = now.Add(10 * ms)
		at2, fraction2, _ := c.At(now)
		if moved := float64(at2-at) + fraction2 - fraction; math.Abs(moved-0.525) > 0.001 {
			t.Errorf("moved by %v ticks", moved)
		}
		at, fraction = at2, fraction2
	}
	if st := c.Stats(); st.Resets != 0 {
		t.Errorf("%+v", st)
	}
	c.Snapshot(600, now) // 10 s more
	at, _, _ = c.At(now)
	if st := c.Stats(); at < 570 || at > 600 || st.Resets != 1 {
		t.Errorf("shows %d, %+v", at, st)
	}
}

// TestClockKeepsDelay: a reset after a gap keeps the delay until enough snapshots have come.
func TestClockKeepsDelay(t *testing.T) {
	c, now := steady(t)
	before := c.Target()
	if before < 35*ms {
		t.Fatalf("target %v", before)
	}
	now = now.Add(5 * time.Second)
	c.Snapshot(400, now)
	c.At(now)
	if st := c.Stats(); st.Resets != 1 || c.Target() != before || st.Delay != before {
		t.Errorf("%+v, target %v, before %v", st, c.Target(), before)
	}
}

// FuzzClock: the shown time never goes back and never passes the newest snapshot.
func FuzzClock(f *testing.F) {
	f.Add(uint32(math.MaxUint32-3), []byte{1, 2, 4, 200, 100, 3, 90, 255, 255, 255, 0, 7})
	f.Add(uint32(1<<31-9), []byte{1, 2, 5, 9, 130, 131, 132, 255, 3, 255, 0, 7, 255, 8, 9})
	f.Fuzz(func(t *testing.T, first uint32, ops []byte) {
		c := newClock(t, 17*ms, 0, 0)
		now := time.Unix(1000, 0)
		newest := first
		c.Snapshot(newest, now)
		at, fraction, _ := c.At(now)
		for _, op := range ops {
			by := int(op&63) - 8
			switch op >> 6 {
			case 0:
				now = now.Add(time.Duration(by) * ms)
			case 1:
				now = now.Add(time.Duration(by*by) * ms)
			case 2:
				c.Snapshot(newest+uint32(by), now)
				newest += uint32(max(by, 0))
			default:
				c.Snapshot(newest+uint32(max(by, 0))<<8, now)
				newest += uint32(max(by, 0)) << 8
			}
			at2, fraction2, ok := c.At(now)
			if !ok || fraction2 < 0 || fraction2 >= 1 {
				t.Fatal(at2, fraction2, ok)
			}
			moved := float64(int32(at2-at)) + fraction2 - fraction
			ahead := float64(int32(at2-newest)) + fraction2
			if moved < 0 || ahead > 0 {
				t.Fatalf("moved %v ticks, %v after the newest snapshot", moved, ahead)
			}
			at, fraction = at2, fraction2
		}
		if st := c.Stats(); c.Target() > 500*ms || st.Jitter < 0 {
			t.Errorf("%+v, target %v", st, c.Target())
		}
	})
}

func TestClockAllocates(t *testing.T) {
	c := newClock(t, 20*ms, 0, 0)
	now, tick := time.Unix(1000, 0), uint32(0)
	rng := rand.New(rand.NewPCG(1, 1))
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Duration(rng.IntN(20)) * ms)
		tick++
		c.Snapshot(tick, now)
		c.At(now)
		c.Stats()
	}); n > 0 {
		t.Errorf("a frame allocates %v times", n)
	}
}
