package websocket

import (
	"net/netip"
	"sync"

	"github.com/ferryrelay/ferry/engine"
)

// door lets connections in, within the limits and while Run runs, and knows how
// many are inside.
type door struct {
	maxTotal, maxAddress int

	mu     sync.Mutex // guards what follows
	in     engine.Intake
	open   bool
	total  int
	by     map[netip.Prefix]int // without those whose address is not known
	inward sync.WaitGroup       // one for each inside; Add only while open
}

// enter counts a caller, and returns where its messages go.
func (d *door) enter(from netip.Prefix, known bool) (in engine.Intake, why Refusal, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.open:
		return nil, RefusedStopped, false
	case d.total >= d.maxTotal:
		return nil, RefusedTotal, false
	case known && d.by[from] >= d.maxAddress:
		return nil, RefusedAddress, false
	}
	d.total++
	if known {
		d.by[from]++
	}
	d.inward.Add(1)
	return d.in, 0, true
}

func (d *door) leave(from netip.Prefix, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total--
	if known {
		if d.by[from]--; d.by[from] == 0 {
			delete(d.by, from)
		}
	}
	d.inward.Done()
}

// unlock lets callers in, whose messages go to in.
func (d *door) unlock(in engine.Intake) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.in, d.open = in, true
}

// lock lets nobody in any more.
func (d *door) lock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = false
}

func (d *door) locked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.open
}

func (d *door) inside() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total
}
