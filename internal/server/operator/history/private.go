package history

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

const (
	// privateLookEvery is how often privateSources looks, and privateLogEvery how often it logs.
	privateLookEvery = 5 * time.Second
	privateLogEvery  = 10 * time.Minute
)

// privateSources notices datagrams from private networks that the relay drops. Its owner is the
// History.
type privateSources struct {
	stats func() engine.Stats
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex // guards what follows
	dropped uint64
	newest  time.Time // when dropped has grown
	logged  time.Time
}

func (p *privateSources) look() {
	n := p.stats().Drops["private"]
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= p.dropped {
		return
	}
	now := p.now()
	if p.logged.IsZero() || now.Sub(p.logged) >= privateLogEvery {
		p.logged = now
		p.log.Warn("datagrams are dropped: "+PrivateSource, "dropped", n, "see", "docs/operating.md#containers-and-addresses-that-loop-back")
	}
	p.dropped, p.newest = n, now
}

// droppedSince reports whether datagrams were dropped since a time, as far as it was looked.
func (p *privateSources) droppedSince(t time.Time) bool {
	p.look()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest.After(t)
}
