package dtls

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// TestWindowNeverTwice compares with a set: no number is accepted twice, and none
// within windowSize of the newest is rejected the first time.
func TestWindowNeverTwice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		var w window
		taken := make(map[uint64]bool)
		base, newest := rnd.Uint64N(1<<47), uint64(0)
		for range 20_000 {
			seq := base + rnd.Uint64N(3*windowSize)
			base += rnd.Uint64N(uint64(2 + round))
			if rnd.IntN(50) == 0 {
				base += rnd.Uint64N(4 * windowSize)
			}
			seen, took := w.seen(seq), w.take(seq)
			if seen == took {
				t.Fatalf("seen and take are both %v for %d", seen, seq)
			}
			if took && taken[seq] {
				t.Fatalf("%d was accepted twice", seq)
			}
			if !took && !taken[seq] && newest-seq < windowSize {
				t.Fatalf("%d refused, %d behind the newest", seq, newest-seq)
			}
			taken[seq] = taken[seq] || took
			newest = max(newest, seq)
		}
	}
}

func TestWindowEdges(t *testing.T) {
	if windowSize < 128 {
		t.Fatalf("the window is %d wide", windowSize)
	}
	const last = 1<<seqBits - 1
	for _, seq := range []uint64{0, 1, 15, 16, 255, 256, last - 1, last} {
		var w window
		if w.seen(seq) || !w.take(seq) || !w.seen(seq) || w.take(seq) {
			t.Errorf("%d is not accepted exactly once", seq)
		}
	}
	var w window
	w.take(last)
	if !w.seen(last-256) || w.take(last-256) {
		t.Error("a record is taken in whose place there is a newer one")
	}
}

// TestWindowConcurrent: of several goroutines with the same numbers, one gets each
// number.
func TestWindowConcurrent(t *testing.T) {
	var w window
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seq := range uint64(windowSize) {
				if w.take(seq) {
					won.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if won.Load() != windowSize {
		t.Fatalf("%d were taken, want %d", won.Load(), windowSize)
	}
}
