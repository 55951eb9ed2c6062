package identity

import (
	"context"
	"sync"
	"sync/atomic"
)

// pool runs the sources of verifiers that take over from one another. A source
// that the next one wants too runs on.
type pool struct {
	started sync.Once
	changed chan struct{} // of one place: the sources in force are others

	fetches, failures atomic.Uint64 // of all sources there ever were

	mu      sync.Mutex // guards inForce; held for no call
	inForce map[string]*source
}

func newPool() *pool { return &pool{changed: make(chan struct{}, 1)} }

// enforce lets run keep these sources fresh, and no others. The map is not
// changed.
func (p *pool) enforce(sources map[string]*source) {
	p.mu.Lock()
	p.inForce = sources
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *pool) wanted() map[string]*source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inForce
}

// run runs the sources in force until ctx ends. None runs when it returns.
func (p *pool) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	stops := make(map[*source]context.CancelFunc)
	for {
		wanted := p.wanted()
		for s, stop := range stops {
			if wanted[s.url] != s {
				stop()
				delete(stops, s)
			}
		}
		for _, s := range wanted {
			if stops[s] == nil {
				life, stop := context.WithCancel(ctx)
				stops[s] = stop
				running.Go(func() { s.run(life) })
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return
		case <-p.changed:
		}
	}
}
