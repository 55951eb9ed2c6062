package bench

import (
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// keepaliveTimer finds the endpoints that were silent. The generator's goroutine owns it.
type keepaliveTimer struct {
	after     int64   // ns of silence, 0 = no keep-alives
	lastSent  []int64 // by endpoint
	cursor    int
	lastCheck int64
}

func newKeepaliveTimer(r *benchrig.Rig, after time.Duration) keepaliveTimer {
	k := keepaliveTimer{lastSent: make([]int64, len(r.Endpoints))}
	now := sock.Now()
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		// Different start times spread the keep-alives.
		k.lastSent[i] = now - int64(after)*int64(i)/int64(len(r.Endpoints))
		if e.LastSent != 0 {
			k.lastSent[i] = min(k.lastSent[i], e.LastSent)
		}
		if e.Keepalive != nil && after > 0 {
			k.after = int64(after)
		}
	}
	for ep := r.Plan.Len() - r.Plan.Spare*(1+r.Plan.Players); ep < r.Plan.Len(); ep++ {
		k.lastSent[ep] = neverSent
	}
	k.lastCheck = now
	return k
}

// due looks at all endpoints in an eighth of the time of silence.
func (k *keepaliveTimer) due(now int64, send func(ep int)) {
	if k.after == 0 {
		return
	}
	n := len(k.lastSent)
	steps := int(float64(n) * float64(now-k.lastCheck) / float64(k.after/8+1))
	if steps == 0 {
		return
	}
	k.lastCheck = now
	for range min(steps, n) {
		ep := k.cursor
		if k.cursor++; k.cursor == n {
			k.cursor = 0
		}
		if now-k.lastSent[ep] >= k.after {
			k.lastSent[ep] = now
			send(ep)
		}
	}
}
