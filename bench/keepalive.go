package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// keepalives are those that silent endpoints sent before the end of the measured interval.
type keepalives struct {
	Sent     uint64  `json:"sent"`
	Answered uint64  `json:"answered"`
	Latency  Latency `json:"latency"` // of the answers
}

// keepaliveTimer finds the endpoints that were silent. The generator's goroutine owns it.
type keepaliveTimer struct {
	after     int64   // ns of silence, 0 = no keep-alives
	lastSent  []int64 // by endpoint
	cursor    int
	lastCheck int64

	asked    []int64  // by endpoint: when the last one was sent
	waiting  []uint16 // by endpoint: those without an answer
	sent     uint64
	answered uint64
	latency  *hdrhistogram.Histogram
}

func newKeepaliveTimer(r *benchrig.Rig, after time.Duration) keepaliveTimer {
	k := keepaliveTimer{
		lastSent: make([]int64, len(r.Endpoints)), asked: make([]int64, len(r.Endpoints)), waiting: make([]uint16, len(r.Endpoints)),
		latency: newHistogram(3),
	}
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

func (k *keepaliveTimer) recordSent(ep int, now int64) {
	k.asked[ep] = now
	k.waiting[ep]++
	k.sent++
}

func (k *keepaliveTimer) recordAnswer(ep int32, now int64) {
	if ep < 0 || k.waiting[ep] == 0 {
		return
	}
	if k.waiting[ep] == 1 { // It is known which one is answered.
		record(k.latency, now-k.asked[ep])
	}
	k.waiting[ep]--
	k.answered++
}

func (k *keepaliveTimer) report() keepalives {
	return keepalives{Sent: k.sent, Answered: k.answered, Latency: newLatency(k.latency, 0, false)}
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
