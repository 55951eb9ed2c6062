package engine

import "sync/atomic"

// epoch is how a worker tells control where it is: odd while it handles a
// batch, even from the end of the flush until the next batch. The worker
// writes it; control reads it. It has a cache line of its own.
type epoch struct {
	count atomic.Uint64
	_     [56]byte
}

// enter begins a batch: it comes before the first look at the table.
func (e *epoch) enter() { e.count.Add(1) }

// leave ends a batch: it comes after the last datagram has been sent.
func (e *epoch) leave() { e.count.Add(1) }

// grace tells when every worker has passed, that is: when no worker can still
// act on what the table said before. It belongs to the control goroutine.
//
// One grace period runs at a time. What is committed while it runs must wait
// for the next one, which begins when this one ends.
type grace struct {
	epochs  []*epoch
	seen    []uint64 // where each worker was when the running period began
	running bool
	wanted  bool   // somebody waits for a period that has not begun
	done    uint64 // number of the last period that is over

	// waiting asks the workers to wake control after a flush.
	waiting atomic.Bool
}

func newGrace(epochs []*epoch) *grace {
	return &grace{epochs: epochs, seen: make([]uint64, len(epochs))}
}

// next returns the number of the period at whose end every worker will have
// passed what was committed until now.
func (g *grace) next() uint64 {
	if !g.running {
		g.begin()
		return g.done + 1
	}
	g.wanted = true
	return g.done + 2
}

func (g *grace) begin() {
	for i, e := range g.epochs {
		g.seen[i] = e.count.Load()
	}
	g.running, g.wanted = true, false
	g.waiting.Store(true)
}

// poll returns the number of the last period that is over.
func (g *grace) poll() uint64 {
	for g.running && g.passed() {
		g.running = false
		g.done++
		if g.wanted {
			g.begin()
		}
	}
	if !g.running {
		g.waiting.Store(false)
	}
	return g.done
}

func (g *grace) passed() bool {
	for i, e := range g.epochs {
		if g.seen[i]&1 == 1 && e.count.Load() == g.seen[i] {
			return false
		}
	}
	return true
}
