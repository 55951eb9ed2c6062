package alloc

import (
	"math"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/joincode"
)

// failJoins counts failed joins at an even rate, and returns the time of the end.
func failJoins(g *failureRates, tenant uint64, perSecond float64, from, lasting time.Duration) time.Duration {
	step := time.Duration(float64(time.Second) / perSecond)
	for at := from; at < from+lasting; at += step {
		g.add(tenant, at)
	}
	return from + lasting
}

func TestFailureRatesFollowTheRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 10, 200} {
		g := new(failureRates)
		end := failJoins(g, 7, rate, time.Second, 5*time.Minute)
		if got := g.perSecond(7, end); math.Abs(got/rate-1) > 0.05 {
			t.Errorf("%v failures a second are observed as %v", rate, got)
		}
		if got := g.perSecond(8, end); got != 0 {
			t.Errorf("another tenant's rate is %v", got)
		}
	}
	g := new(failureRates)
	if got := g.perSecond(7, time.Hour); got != 0 {
		t.Errorf("without failures the rate is %v", got)
	}
	g.add(7, time.Hour)
	if got := g.perSecond(7, time.Hour); got > 0.02 {
		t.Errorf("one failure is observed as %v a second", got)
	}
}

// TestFailureRatesDecay: a peak decays to half in an hour, a lower rate does not renew
// it, and an earlier time changes nothing.
func TestFailureRatesDecay(t *testing.T) {
	t.Parallel()
	g := new(failureRates)
	end := failJoins(g, 7, 100, 0, 10*time.Minute)
	peak := g.perSecond(7, end)
	if got := g.perSecond(7, end-time.Minute); got != peak {
		t.Errorf("a late call sees %v instead of %v", got, peak)
	}
	for hours, want := range []float64{1, 0.5, 0.25, 0.125} {
		if got := g.perSecond(7, end+time.Duration(hours)*time.Hour) / peak; math.Abs(got-want) > 1e-6 {
			t.Errorf("after %d h the peak counts %v, want %v", hours, got, want)
		}
	}
	end = failJoins(g, 7, 1, end+3*time.Hour, 10*time.Minute)
	if got := g.perSecond(7, end) / peak; got > 0.125 || got < 0.1 {
		t.Errorf("a lower rate leaves %v of the peak", got)
	}
}

// TestFailureRatesKeep28Days: at any steady rate of failed joins, and with any number
// of codes, a new code is so long that a guess hits after 28 days on average.
func TestFailureRatesKeep28Days(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{20, 100, 1000} {
		g := new(failureRates)
		end := failJoins(g, 7, rate, 0, 5*time.Minute)
		for _, active := range []int{1, 1000, 100_000} {
			length := joincode.Len(active, max(DefaultFailuresPerSecond, g.perSecond(7, end)))
			days := math.Pow(20, float64(length)) / float64(active) / rate / 86400
			if length < joincode.MaxLen && days < 28*0.95 {
				t.Errorf("%d codes at %v/s have %d symbols, which last %.1f days", active, rate, length, days)
			}
		}
	}
}
