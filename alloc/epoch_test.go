package alloc_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

func TestEpochRollsOverWithTheClock(t *testing.T) {
	t.Parallel()
	clock := newMovingClock()
	s := newTestSealer(t, func(c *alloc.SealerConfig) { c.Now = clock.Now })
	var sealed []alloc.ConnectionData
	for n := range 6 {
		data := mustSeal(t, s, hostClaims())
		sealed = append(sealed, data)
		if got, want := int(binary.BigEndian.Uint16(data[1:3])), 2900+n; got != want {
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
	clock := newMovingClock()
	s := newTestSealer(t, func(c *alloc.SealerConfig) { c.Now = clock.Now })
	ahead := mustSeal(t, s, hostClaims())
	clock.Advance(-4 * time.Minute)
	behind := mustSeal(t, s, hostClaims())
	if a, b := binary.BigEndian.Uint16(ahead[1:]), binary.BigEndian.Uint16(behind[1:]); a != 2900 || b != 2899 {
		t.Fatalf("epochs %d and %d, want 2900 and 2899", a, b)
	}
	if !opens(s, ahead[:]) || !opens(s, behind[:]) {
		t.Error("data sealed before or after the clock was set back does not open")
	}
}

func TestRetainAndRelease(t *testing.T) {
	t.Parallel()
	clock := newMovingClock()
	s := newTestSealer(t, func(c *alloc.SealerConfig) { c.Now = clock.Now })
	data := mustSeal(t, s, hostClaims())
	s.Retain(2900)
	s.Retain(2900)
	clock.Advance(30 * week)
	mustSeal(t, s, hostClaims())
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"30 weeks later, retained twice", func() {}, true},
		{"released once", func() { s.Release(2900) }, true},
		{"another week released", func() { s.Release(2901) }, true},
		{"released twice", func() { s.Release(2900) }, false},
		{"released too often", func() { s.Release(2900) }, false},
		{"retained again", func() { s.Retain(2900) }, true},
		{"and released", func() { s.Release(2900) }, false},
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
	s.Retain(2900)
	s.Release(2900)
	if !opens(s, data[:]) {
		t.Error("this week's data does not open after Retain and Release")
	}
}

// TestRetainAfterRestart: a process started weeks later opens the data of a
// match that its state file knows, and only then.
func TestRetainAfterRestart(t *testing.T) {
	t.Parallel()
	data := mustSeal(t, newTestSealer(t, nil), hostClaims())
	s := newTestSealer(t, func(c *alloc.SealerConfig) { c.Boot, c.Now = 78, testClock(9*week) })
	if opens(s, data[:]) {
		t.Fatal("an epoch nine weeks back is known unasked")
	}
	s.Retain(2900)
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
		{-1, 0}, {math.MinInt64, 0}, {0, 0}, {604799, 0}, {604800, 1},
		{math.MaxUint16 * 604800, math.MaxUint16}, {math.MaxInt64, math.MaxUint16},
	} {
		s := newTestSealer(t, func(c *alloc.SealerConfig) { c.Now = func() time.Time { return time.Unix(tt.unix, 0) } })
		data := mustSeal(t, s, hostClaims())
		if got := binary.BigEndian.Uint16(data[1:]); got != tt.want || !opens(s, data[:]) {
			t.Errorf("at %d s: epoch %d, want %d", tt.unix, got, tt.want)
		}
	}
}
