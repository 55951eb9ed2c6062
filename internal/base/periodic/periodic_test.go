package periodic

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSharedWakeups: loops with intervals that divide each other wake up together, whenever they began.
func TestSharedWakeups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var loops sync.WaitGroup
		var mu sync.Mutex
		calls, wakeups := map[time.Duration]int{}, map[time.Time]bool{}
		for _, every := range []time.Duration{250 * time.Millisecond, time.Second, time.Second, 10 * time.Second} {
			loops.Go(func() {
				Run(ctx, every, func() {
					mu.Lock()
					defer mu.Unlock()
					calls[every]++
					wakeups[time.Now()] = true
				})
			})
			time.Sleep(83 * time.Millisecond)
		}
		time.Sleep(100 * time.Second)
		cancel()
		loops.Wait()
		for every, want := range map[time.Duration]int{250 * time.Millisecond: 400, time.Second: 200, 10 * time.Second: 10} {
			if got := calls[every]; got < want || got > want+2 {
				t.Errorf("%v: %d calls, want %d", every, got, want)
			}
		}
		if len(wakeups) != calls[250*time.Millisecond] {
			t.Errorf("%d wake-ups for %v", len(wakeups), calls)
		}
	})
}
