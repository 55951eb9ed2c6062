package seal

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestEpochRollsOverWithTheClock(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(weekStart)
	s := newTestSealer(t, func(c *Config) { c.Now = clock.Now })
	var sealed []alloc.ConnectionData
	for n := range 6 {
		data := mustSeal(t, s, hostClaims())
		sealed = append(sealed, data)
		if got, want := int(binary.BigEndian.Uint16(data[1:3])), testEpoch+168*n; got != want {
			t.Errorf("week %d: epoch %d in the header, want %d", n, got, want)
		}
		for i := range sealed {
			if got, want := opens(s, sealed[i][:]), n-i <= 2; got != want {
				t.Errorf("in week %d, data of week %d opens: %v, want %v", n, i, got, want)
			}
		}
		clock.Advance(week)
	}
}

func TestEpochFollowsAClockSetBack(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(weekStart)
	s := newTestSealer(t, func(c *Config) { c.Now = clock.Now })
	ahead := mustSeal(t, s, hostClaims())
	clock.Advance(-4 * time.Minute)
	behind := mustSeal(t, s, hostClaims())
	if a, b := binary.BigEndian.Uint16(ahead[1:]), binary.BigEndian.Uint16(behind[1:]); a != testEpoch || b != testEpoch-168 {
		t.Fatalf("epochs %d and %d, want testEpoch and the week before", a, b)
	}
	if !opens(s, ahead[:]) || !opens(s, behind[:]) {
		t.Error("data sealed before or after the clock was set back does not open")
	}
}

func TestRetainAndRelease(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(weekStart)
	s := newTestSealer(t, func(c *Config) { c.Now = clock.Now })
	data := mustSeal(t, s, hostClaims())
	s.Retain(testEpoch)
	s.Retain(testEpoch)
	clock.Advance(30 * week)
	mustSeal(t, s, hostClaims())
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"30 weeks later, retained twice", func() {}, true},
		{"released once", func() { s.Release(testEpoch) }, true},
		{"another week released", func() { s.Release(testEpoch + 168) }, true},
		{"released twice", func() { s.Release(testEpoch) }, false},
		{"released too often", func() { s.Release(testEpoch) }, false},
		{"retained again", func() { s.Retain(testEpoch) }, true},
		{"and released", func() { s.Release(testEpoch) }, false},
	}
	for _, step := range steps {
		step.do()
		if got := opens(s, data[:]); got != step.want {
			t.Errorf("%s: opens %v, want %v", step.name, got, step.want)
		}
	}
}

// TestReleaseKeepsTheWindow: the epochs around the present need no Retain.
func TestReleaseKeepsTheWindow(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	data := mustSeal(t, s, hostClaims())
	s.Retain(testEpoch)
	s.Release(testEpoch)
	if !opens(s, data[:]) {
		t.Error("this week's data does not open after Retain and Release")
	}
}

// TestRetainAfterRestart: a process started weeks later opens retained data only.
func TestRetainAfterRestart(t *testing.T) {
	t.Parallel()
	data := mustSeal(t, newTestSealer(t, nil), hostClaims())
	s := newTestSealer(t, func(c *Config) { c.Boot, c.Now = 78, testClock(9*week) })
	if opens(s, data[:]) {
		t.Fatal("an epoch nine weeks back is known unasked")
	}
	s.Retain(testEpoch)
	if !opens(s, data[:]) {
		t.Error("a retained epoch of an earlier run does not open")
	}
}

func TestEpochAtTheEndsOfTime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		unix int64
		want uint16
	}{
		{-1, 0}, {math.MinInt64, 0}, {0, 0}, {604799, 0}, {604800, 168},
		{391 * 604800, 391*168 - 1<<16}, {math.MaxInt64, 24088},
	} {
		s := newTestSealer(t, func(c *Config) { c.Now = func() time.Time { return time.Unix(tt.unix, 0) } })
		data := mustSeal(t, s, hostClaims())
		if got := binary.BigEndian.Uint16(data[1:]); got != tt.want || !opens(s, data[:]) {
			t.Errorf("at %d s: epoch %d, want %d", tt.unix, got, tt.want)
		}
	}
}

// TestShortEpoch: with an epoch of an hour, data opens for two more hours, or as long as
// its epoch is retained.
func TestShortEpoch(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(weekStart)
	s := newTestSealer(t, func(c *Config) { c.Now, c.Epoch = clock.Now, time.Hour })
	clock.Advance(5 * time.Hour) // the end of the recovery after a start
	first, second := mustSeal(t, s, hostClaims()), alloc.ConnectionData{}
	for hour := range 6 {
		data := mustSeal(t, s, hostClaims())
		if got, want := EpochOf(&data), uint16(testEpoch+5+hour); got != want {
			t.Errorf("hour %d: epoch %d, want %d", hour, got, want)
		}
		if hour == 1 {
			second = data
			s.Retain(EpochOf(&data))
		}
		if got, want := opens(s, first[:]), hour <= 2; got != want {
			t.Errorf("in hour %d, data of hour 0 opens: %v, want %v", hour, got, want)
		}
		clock.Advance(time.Hour)
	}
	if !opens(s, second[:]) {
		t.Error("data of a retained hour does not open")
	}
	s.Release(EpochOf(&second))
	if opens(s, second[:]) {
		t.Error("data of an hour opens after its last allocation has ended")
	}
}

// TestRecoverEpochs: for an hour after a start, data of the weeks before opens,
// whatever the lengths of the epochs of both runs. What was not retained is forgotten.
func TestRecoverEpochs(t *testing.T) {
	t.Parallel()
	for _, before := range []time.Duration{time.Hour, 5 * time.Hour, week, 4 * week} {
		for _, after := range []time.Duration{time.Hour, week} {
			clock := testkit.NewClock(weekStart)
			old := newTestSealer(t, func(c *Config) { c.Now, c.Epoch = clock.Now, before })
			long := mustSeal(t, old, hostClaims())
			clock.Advance(6 * week)
			alive := mustSeal(t, old, hostClaims())
			clock.Advance(9 * time.Hour)
			ended := mustSeal(t, old, hostClaims())
			clock.Advance(50 * time.Hour)

			s := newTestSealer(t, func(c *Config) { c.Boot, c.Now, c.Epoch = 78, clock.Now, after })
			clock.Advance(59 * time.Minute)
			mustSeal(t, s, hostClaims())
			if opens(s, long[:]) {
				t.Errorf("%v to %v: data of six weeks ago opens", before, after)
			}
			if !opens(s, alive[:]) || !opens(s, ended[:]) {
				t.Errorf("%v to %v: data of the previous run does not open", before, after)
			}
			s.Retain(EpochOf(&alive))
			clock.Advance(3 * after)
			mustSeal(t, s, hostClaims())
			if !opens(s, alive[:]) {
				t.Errorf("%v to %v: data of a restored allocation does not open", before, after)
			}
			if EpochOf(&ended) != EpochOf(&alive) && opens(s, ended[:]) {
				t.Errorf("%v to %v: data of an ended allocation opens an epoch later", before, after)
			}
		}
	}
}
