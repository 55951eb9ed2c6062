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
	// cancelFor is how long a cancellation is tried: as long as an unbound
	// reservation lives, and as the relay retains its key.
	cancelFor = 10 * time.Second
	// cancelTimeout bounds one attempt.
	cancelTimeout = 2 * time.Second
	// The pause after a failed attempt, doubled each time and drawn from its upper
	// half.
	cancelPause, maxCancelPause = 50 * time.Millisecond, time.Second
	// finishTimeout bounds the wait for cancellations at the end of Run.
	finishTimeout = time.Second
)

// cancelQueue holds the keys that wait to be cancelled at one relay.
type cancelQueue struct {
	mu      sync.Mutex   // guards the following fields; held during no call
	keys    []pendingKey // oldest first
	sending bool         // a goroutine sends them
}

type pendingKey struct {
	key   key
	since time.Time
}

// queueCancellation cancels a key in the background. The caller is between acquire and
// release of the relayConn.
func (d *Dialer) queueCancellation(l *relayConn, k key) {
	d.counts.lost.Add(1)
	p := &l.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) >= maxPending {
		d.counts.overflowed.Add(1)
		return
	}
	p.keys = append(p.keys, pendingKey{k, time.Now()})
	if p.sending {
		return
	}
	p.sending = true
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
func (d *Dialer) cancelAll(ctx context.Context, l *relayConn) {
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
		pause = min(2*pause, maxCancelPause)
	}
}

// batch returns the oldest keys that are worth sending, or nil, when the caller
// must come back no more.
func (d *Dialer) batch(ctx context.Context, p *cancelQueue) []pendingKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.keys) && (ctx.Err() != nil || time.Since(p.keys[old].since) > cancelFor) {
		old++
	}
	d.counts.givenUp.Add(uint64(old))
	p.keys = p.keys[old:]
	if len(p.keys) == 0 {
		p.keys, p.sending = nil, false
		return nil
	}
	return p.keys[:min(len(p.keys), maxBatch)]
}

// done drops the first n keys.
func (p *cancelQueue) done(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = p.keys[n:]
}

func (d *Dialer) cancel(ctx context.Context, l *relayConn, batch []pendingKey) error {
	call := cancelCall{Keys: make([]string, len(batch))}
	for i, w := range batch {
		call.Keys[i] = w.key.String()
	}
	ctx, stop := context.WithTimeout(ctx, cancelTimeout)
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
