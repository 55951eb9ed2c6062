package rpc

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The limits of cancellations. Each relay has its own queue, so that an unreachable one
// does not affect the others.
const (
	// maxPending bounds the keys that wait to be cancelled at one relay, 128 KiB.
	// Further keys are dropped: their reservations expire unbound.
	maxPending = 4096
	// cancelFor is how long a cancellation is tried: as long as an unbound
	// reservation lives, and as the relay retains its key.
	cancelFor     = 10 * time.Second
	cancelTimeout = 2 * time.Second
	// The pause after a failed attempt, doubled each time and drawn from its upper
	// half.
	cancelPause, maxCancelPause = 50 * time.Millisecond, time.Second
	finishTimeout               = time.Second
)

type cancelQueue struct {
	mu      sync.Mutex   // guards the following fields; not held during calls
	keys    []pendingKey // oldest first
	sending bool         // a goroutine sends them
}

type pendingKey struct {
	key   key
	since time.Time
}

// queueCancellation cancels a key in the background. Call it between acquire and
// release of the relayConn.
func (d *Dialer) queueCancellation(rc *relayConn, k key) {
	d.counts.lost.Add(1)
	p := &rc.pending
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
	rc.calls++
	runCtx := d.runCtx
	d.mu.Unlock()
	d.work.Go(func() {
		d.cancelAll(runCtx, rc)
		d.mu.Lock()
		defer d.mu.Unlock()
		rc.calls--
	})
}

func (d *Dialer) cancelAll(ctx context.Context, rc *relayConn) {
	pause := cancelPause
	for {
		batch := d.batch(ctx, &rc.pending)
		if batch == nil {
			return
		}
		if err := d.cancel(ctx, rc, batch); err == nil {
			rc.pending.done(len(batch))
			d.counts.cancelled.Add(uint64(len(batch)))
			pause = cancelPause
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, maxCancelPause)
	}
}

// batch returns the oldest keys that are still worth sending. It returns nil if there
// are none, and then the caller's goroutine must end.
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

func (p *cancelQueue) done(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = p.keys[n:]
}

func (d *Dialer) cancel(ctx context.Context, rc *relayConn, batch []pendingKey) error {
	call := cancelCall{Keys: make([]string, len(batch))}
	for i, w := range batch {
		call.Keys[i] = w.key.String()
	}
	ctx, stop := context.WithTimeout(ctx, cancelTimeout)
	defer stop()
	_, err := rc.call(ctx, ctx, exchange{path: pathCancel, key: []string{}, in: call, out: &emptyAnswer{}})
	return err
}
