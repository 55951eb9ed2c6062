package engine

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// FastPath is a program in the kernel that relays between plain UDP endpoints as the workers
// do, and leaves to them what it does not decide. Package fastpath makes it.
type FastPath interface {
	Driver() driver.FastPath
}

// nextHops is control's part of a fast path. The methods of nil do nothing.
type nextHops struct {
	path      driver.FastPath
	table     *table.Table
	tap       *atomic.Pointer[tap] // shared.tap
	localAddr func(endpoint.Endpoint) (netip.AddrPort, bool)
	alive     func(endpoint.Endpoint) bool // Records.Alive, or nil

	changed    atomic.Bool // the network has changed
	resolving  bool
	generation uint64 // of the network, for which slots are resolved
	cursor     uint32 // next slot to resolve

	mu    sync.Mutex          // guards taken
	taken []endpoint.Endpoint // plain endpoints at which sessions of Records began
}

// resolveBatch takes some tenths of a millisecond.
const resolveBatch = 1024

func (w *nextHops) open(h table.Handle) {
	if w == nil {
		return
	}
	e, ok := w.table.At(h)
	if !ok {
		return
	}
	nextHop := table.NextHop(0) // during a capture, workers relay its match
	if t := w.tap.Load(); t == nil || w.table.Account(h).Match != t.match {
		nextHop = w.resolve(e.Endpoint)
	}
	if nextHop != 0 {
		nextHop |= table.NextHopUnseen
	}
	if nextHop != w.table.NextHop(h) {
		w.table.SetNextHop(h, nextHop)
	}
}

func (w *nextHops) resolve(to endpoint.Endpoint) table.NextHop {
	if k := to.Kind(); k != endpoint.KindUDP4 && k != endpoint.KindUDP6 || w.alive != nil && w.alive(to) {
		return 0
	}
	from, ok := w.localAddr(to)
	if !ok {
		return 0
	}
	return w.path.NextHop(to, from)
}

// From sessionBegan on, plain messages from the endpoint are dropped. Any goroutine calls it, and
// then wakes control.
func (w *nextHops) sessionBegan(from endpoint.Endpoint) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = append(w.taken, from)
}

func (w *nextHops) update() (more bool) {
	if w == nil {
		return false
	}
	w.mu.Lock()
	taken := slices.Clone(w.taken)
	w.taken = w.taken[:0]
	w.mu.Unlock()
	for _, ep := range taken {
		var e table.Entry
		if w.table.FindByEndpoint(ep, &e) {
			w.open(e.Handle)
		}
	}
	if w.changed.Swap(false) {
		w.generation, w.cursor, w.resolving = w.path.Generation(), 0, true
	}
	if !w.resolving {
		return false
	}
	end := min(w.cursor+resolveBatch, w.table.Slots())
	for ; w.cursor < end; w.cursor++ {
		w.open(w.table.HandleAt(w.cursor))
	}
	if w.cursor < w.table.Slots() {
		return true
	}
	w.resolving = false
	w.path.Resume(w.generation)
	return false
}

// kernelGrace counts grace periods of the program in the kernel. Any goroutine may read done.
type kernelGrace struct {
	synchronize func()
	wakeControl func()
	wake        chan struct{}
	wanted      atomic.Uint64
	done        atomic.Uint64
}

func newKernelGrace(synchronize, wakeControl func()) *kernelGrace {
	return &kernelGrace{synchronize: synchronize, wakeControl: wakeControl, wake: make(chan struct{}, 1)}
}

// Control calls begin.
func (k *kernelGrace) begin() uint64 {
	n := k.wanted.Add(1)
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return n
}

func (k *kernelGrace) isOver(n uint64) bool { return k.done.Load() >= n }

// Periods that began while run waited end together.
func (k *kernelGrace) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		}
		n := k.wanted.Load()
		k.synchronize()
		k.done.Store(n)
		k.wakeControl()
	}
}
