package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The limits of cancellations. Each relay has its own, so that one that is gone
// takes nothing from the others.
const (
	// maxPending bounds the keys that wait to be cancelled at one relay, 128 KiB.
	// Beyond it the next one is dropped: its reservation lapses by itself.
	maxPending = 4096
	// cancelFor is how long a cancellation is tried: as long as a reservation that
	// nobody binds lives, and as the relay remembers its key.
	cancelFor = 10 * time.Second
	// cancelWithin bounds one attempt.
	cancelWithin = 2 * time.Second
	// The pause after a failed attempt, doubled each time and drawn from its upper
	// half.
	cancelPause, cancelPauseMost = 50 * time.Millisecond, time.Second
	// farewellFor bounds the wait for cancellations at the end of Run.
	farewellFor = time.Second
)

// pending are the keys that wait to be cancelled at one relay.
type pending struct {
	mu   sync.Mutex // guards the following fields; held for no call
	keys []waiting  // oldest first
	busy bool       // somebody sends them
}

type waiting struct {
	key   key
	since time.Time
}

// takeBack has a key cancelled in the background. The caller is within enter and
// leave of the line.
func (d *Dialer) takeBack(l *line, k key) {
	d.counts.lost.Add(1)
	p := &l.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) >= maxPending {
		d.counts.overflowed.Add(1)
		return
	}
	p.keys = append(p.keys, waiting{k, time.Now()})
	if p.busy {
		return
	}
	p.busy = true
	d.mu.Lock()
	l.calls++
	life := d.life
	d.mu.Unlock()
	d.work.Go(func() {
		d.cancelAll(life, l)
		d.mu.Lock()
		defer d.mu.Unlock()
		l.calls--
	})
}

// cancelAll sends what is pending until nothing is.
func (d *Dialer) cancelAll(ctx context.Context, l *line) {
	pause := cancelPause
	for {
		batch := d.batch(ctx, &l.pending)
		if batch == nil {
			return
		}
		if err := d.cancel(ctx, l, batch); err == nil {
			l.pending.done(len(batch))
			d.counts.cancelled.Add(uint64(len(batch)))
			pause = cancelPause
			continue
		}
		wait(ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, cancelPauseMost)
	}
}

// batch returns the oldest keys that are worth sending, or nil, when the caller
// must come back no more.
func (d *Dialer) batch(ctx context.Context, p *pending) []waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.keys) && (ctx.Err() != nil || time.Since(p.keys[old].since) > cancelFor) {
		old++
	}
	d.counts.givenUp.Add(uint64(old))
	p.keys = p.keys[old:]
	if len(p.keys) == 0 {
		p.keys, p.busy = nil, false
		return nil
	}
	return p.keys[:min(len(p.keys), maxBatch)]
}

// done drops the first n keys.
func (p *pending) done(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = p.keys[n:]
}

func (d *Dialer) cancel(ctx context.Context, l *line, batch []waiting) error {
	call := cancelCall{Keys: make([]string, len(batch))}
	for i, w := range batch {
		call.Keys[i] = w.key.String()
	}
	ctx, stop := context.WithTimeout(ctx, cancelWithin)
	defer stop()
	_, err := l.call(ctx, ctx, exchange{path: pathCancel, key: []string{}, in: call, out: &emptyAnswer{}})
	return err
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
