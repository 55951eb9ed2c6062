package lab

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// beatEvery is how often each processor is looked at.
	beatEvery = 5 * time.Millisecond
	// stallFrom is how late a look may be before its processor passes for one
	// that stood still.
	stallFrom = 40 * time.Millisecond
)

// Stalls records when the hypervisor took a processor of this machine, by its
// hypervisor or by others: one goroutine for each sleeps there and sees how late
// it wakes up. Its methods may be called while Run runs.
type Stalls struct {
	mu    sync.Mutex  // guards the following fields
	beats []time.Time // the last one of each processor
	last  time.Time   // when the last stall that is over ended
	total time.Duration
}

// NewStalls returns a Stalls that records from Run on.
func NewStalls() *Stalls { return &Stalls{} }

// Run watches until ctx ends.
func (s *Stalls) Run(ctx context.Context) {
	var set unix.CPUSet
	// Without a list there is no record, and no failure is excused.
	_ = unix.SchedGetaffinity(0, &set)
	// A watcher that waits for its turn in this process would be late for nothing.
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(procs + set.Count())
	defer runtime.GOMAXPROCS(procs)
	var watchers sync.WaitGroup
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			watchers.Go(func() { s.watch(ctx, cpu) })
		}
	}
	watchers.Wait()
}

// watch looks at one processor.
func (s *Stalls) watch(ctx context.Context, cpu int) {
	runtime.LockOSThread() // Never unlocked: the thread ends with this goroutine.
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	s.mu.Lock()
	me := len(s.beats)
	s.beats = append(s.beats, time.Now())
	s.mu.Unlock()
	pause := unix.NsecToTimespec(int64(beatEvery))
	for ctx.Err() == nil {
		_ = unix.Nanosleep(&pause, nil) // On this thread, and so on this processor.
		s.beat(me)
	}
	s.mu.Lock()
	s.beats[me] = time.Time{}
	s.mu.Unlock()
}

func (s *Stalls) beat(me int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if late := now.Sub(s.beats[me]); late > stallFrom {
		s.last = now
		s.total += late
	}
	s.beats[me] = now
}

// Since reports whether a processor has stood still at any time after a moment,
// or does so now.
func (s *Stalls) Since(moment time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.beats {
		if !at.IsZero() && time.Since(at) > stallFrom {
			return true
		}
	}
	return s.last.After(moment)
}

// Total is for how long processors have stood still, added up.
func (s *Stalls) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}
