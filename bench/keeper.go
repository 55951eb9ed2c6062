package bench

import (
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// keeper knows which endpoints were silent. The generator's goroutine owns it.
type keeper struct {
	after  int64   // ns of silence, 0 = no keep-alives
	spoken []int64 // by endpoint
	relays []endpoint.Endpoint
	cursor int
	looked int64
}

func newKeeper(r *Rig, after time.Duration) keeper {
	k := keeper{relays: make([]endpoint.Endpoint, len(r.Endpoints)), spoken: make([]int64, len(r.Endpoints))}
	now := sock.Now()
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		k.relays[i] = endpoint.UDP(e.Relay, e.Local, 0)
		// They spoke at different times, so that their keep-alives are spread.
		k.spoken[i] = now - int64(after)*int64(i)/int64(len(r.Endpoints))
		if e.Keepalive != nil && after > 0 {
			k.after = int64(after)
		}
	}
	k.looked = now
	return k
}

func (k *keeper) spoke(ep int32, now int64) { k.spoken[ep] = now }

// due steps through the endpoints, all of them in an eighth of the time of
// silence, and calls say for those that have to speak.
func (k *keeper) due(now int64, say func(ep int)) {
	if k.after == 0 {
		return
	}
	n := len(k.spoken)
	steps := int(float64(n) * float64(now-k.looked) / float64(k.after/8+1))
	if steps == 0 {
		return
	}
	k.looked = now
	for range min(steps, n) {
		ep := k.cursor
		if k.cursor++; k.cursor == n {
			k.cursor = 0
		}
		if now-k.spoken[ep] >= k.after {
			k.spoken[ep] = now
			say(ep)
		}
	}
}

// keepAlive speaks for the endpoints that were silent too long.
func (g *generator) keepAlive(now int64) {
	g.keep.due(now, g.say)
}

func (g *generator) say(ep int) {
	if pkt := g.rig.Endpoints[ep].Keepalive; pkt != nil {
		g.add(ep, pkt)
		g.count.keepalives++
	}
}
