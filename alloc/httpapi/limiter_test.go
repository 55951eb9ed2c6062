package httpapi

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"
)

// oneSet is the size of a limiter whose buckets all share one set.
const oneSet = setWays

func (l *limiter[K]) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, set := range l.sets {
		for _, b := range set {
			if b.limit != nil {
				n++
			}
		}
	}
	return n
}

func TestLimiterRefillsEvenly(t *testing.T) {
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for i := range 60 {
		if wait := l.take("a", 60, now); wait != 0 {
			t.Fatalf("request %d: wait %v", i, wait)
		}
	}
	for range 3 {
		if wait := l.take("a", 60, now); wait <= 0 || wait > time.Second {
			t.Fatalf("wait = %v, want up to a second, also when asked again", wait)
		}
	}
	if wait := l.take("a", 60, now.Add(500*time.Millisecond)); wait <= 0 || wait > 500*time.Millisecond {
		t.Errorf("half a second later: wait %v", wait)
	}
	now = now.Add(time.Second)
	if wait := l.take("a", 60, now); wait != 0 {
		t.Errorf("a second later: wait %v", wait)
	}
	if wait := l.take("a", 60, now); wait == 0 {
		t.Error("a second gave two requests")
	}
}

// TestLimiterCharges: charges can make a bucket negative; it refills before the next
// event is permitted.
func TestLimiterCharges(t *testing.T) {
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	if wait := l.peek("a", now); wait != 0 || l.size() != 0 {
		t.Errorf("wait %v of a key that was never seen, %d buckets", wait, l.size())
	}
	for i := range 13 {
		want := time.Duration(max(0, i-9)) * 6 * time.Second
		if wait := l.peek("a", now); math.Abs(float64(wait-want)) > float64(time.Millisecond) {
			t.Errorf("after %d events: wait %v, want %v", i, wait, want)
		}
		l.charge("a", 10, now)
	}
	if wait := l.peek("a", now.Add(24*time.Second)); wait > time.Millisecond {
		t.Errorf("when the debt is paid: wait %v", wait)
	}
}

func TestLimiterCountsPrincipalsAndCallsApart(t *testing.T) {
	l := newLimiter[bucketKey](64)
	now := time.Unix(1000, 0)
	keys := []bucketKey{{"a", callJoin}, {"a", callAllocate}, {"b", callJoin}}
	for _, k := range keys {
		if wait := l.take(k, 1, now); wait != 0 {
			t.Errorf("%v: wait %v", k, wait)
		}
		if wait := l.take(k, 1, now); wait == 0 {
			t.Errorf("%v: a second request of one", k)
		}
	}
}

// TestLimiterIsFixed: the table does not grow, and new keys replace buckets of their own
// set only.
func TestLimiterIsFixed(t *testing.T) {
	const most = 64
	l := newLimiter[string](most)
	now := time.Unix(1000, 0)
	for i := range 1000 {
		l.take(strconv.Itoa(i), 60, now)
		if n := l.size(); n > most || n > i+1 {
			t.Fatalf("%d buckets after %d keys, at most %d", n, i+1, most)
		}
	}
	if n := l.size(); n != most {
		t.Errorf("%d buckets in use of %d", n, most)
	}
}

// TestLimiterForgetsTheFullest: a new key replaces the fullest bucket of its set.
func TestLimiterForgetsTheFullest(t *testing.T) {
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for range 60 {
		l.take("spent", 60, now)
	}
	for i := range 1000 {
		l.take(strconv.Itoa(i), 60, now)
	}
	if wait := l.take("spent", 60, now); wait == 0 {
		t.Error("the spent bucket was forgiven")
	}
	now = now.Add(time.Minute) // all are full again
	for i := range 20 {
		for range 60 {
			l.take(strconv.Itoa(i), 60, now)
		}
	}
	if wait := l.take("19", 60, now); wait == 0 {
		t.Error("the bucket used last was forgotten while others were full")
	}
}

func TestLimiterConcurrently(t *testing.T) {
	l := newLimiter[string](16)
	now := time.Unix(1000, 0)
	var granted [4]int
	var wg sync.WaitGroup
	for g := range granted {
		wg.Go(func() {
			for i := range 100 {
				if l.take("shared", 60, now) == 0 {
					granted[g]++
				}
				l.peek(fmt.Sprint(g, i%3), now)
				l.charge("another", 60, now)
			}
		})
	}
	wg.Wait()
	if sum := granted[0] + granted[1] + granted[2] + granted[3]; sum != 60 {
		t.Errorf("%d requests granted of 60", sum)
	}
}

// TestLimiterOtherRate: a key whose rate changes keeps its tokens and refills at the new
// rate.
func TestLimiterOtherRate(t *testing.T) {
	l := newLimiter[string](oneSet)
	now := time.Unix(1000, 0)
	for range 60 {
		l.take("a", 60, now)
	}
	if wait := l.take("a", 600, now); wait <= 0 || wait > 100*time.Millisecond {
		t.Errorf("nothing is left, at ten a second: wait %v", wait)
	}
	now = now.Add(time.Minute)
	for i := range 10 {
		if wait := l.take("a", 10, now); wait != 0 {
			t.Errorf("request %d of 10: wait %v", i, wait)
		}
	}
	if wait := l.take("a", 10, now); wait <= 5*time.Second || wait > 6*time.Second {
		t.Errorf("more than 10 at once: wait %v", wait)
	}
}
