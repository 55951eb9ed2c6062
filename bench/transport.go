package bench

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Connections is about the connections of a run over TCP.
type Connections struct {
	Ended  uint64 `json:"ended"`  // by the relay
	Opened uint64 `json:"opened"` // again, after that
	Waited uint64 `json:"waited"` // datagrams for which the kernel had no room when they were due
	// WindowClosed is how long data waited because the relay's receive buffer was full.
	WindowClosed  time.Duration `json:"windowClosedNs"`
	Retransmitted uint64        `json:"retransmitted"` // segments
	// Backlogged counts the times when the receive buffer of a connection had room for less than
	// 16 KiB: the generator did not read in time, and the relay may have had to wait.
	Backlogged uint64 `json:"backlogged"`
}

const (
	// reconnectInterval is the time, in ns, between attempts to connect an endpoint again.
	reconnectInterval = int64(500e6)
	// maxUnanswered is the number of keep-alives without an answer after which an endpoint
	// over DTLS makes a new session.
	maxUnanswered = 3
)

// reconnector connects endpoints again. The generator's goroutine owns it.
type reconnector struct {
	rig      *benchrig.Rig
	times    *phases
	recorder *recorder
	sender   *sender
	rebind   *rebinder

	lost      map[int]int64 // endpoints without a connection, and when they last tried
	silence   []silence     // by endpoint; nil: not over DTLS
	interval  int64         // ns without a datagram after which an endpoint asks the relay
	nextCheck int64
	before    benchrig.Connections // of earlier runs
}

type silence struct {
	heard, asked int64 // ns of sock.Now
	unanswered   int
}

// newReconnector returns nil over UDP, which has no connections.
func newReconnector(g *generator) *reconnector {
	if g.cfg.Transport == benchrig.TransportUDP {
		return nil
	}
	r := &reconnector{
		rig: g.rig, times: &g.times, recorder: g.recorder, sender: &g.sender, rebind: &g.rebind, lost: map[int]int64{},
	}
	if c := g.rig.Connections(); c != nil {
		r.before = *c
	}
	if g.cfg.Transport == benchrig.TransportDTLS && g.cfg.Keepalive > 0 {
		r.silence, r.interval = make([]silence, len(g.rig.Endpoints)), max(int64(g.cfg.Keepalive), int64(1e9))
		for i := range r.silence {
			r.silence[i].heard = sock.Now()
		}
	}
	return r
}

func (r *reconnector) heard(ep int32, now int64) {
	if r != nil && r.silence != nil && ep >= 0 {
		r.silence[ep] = silence{heard: now}
	}
}

func (r *reconnector) reconnect(ctx context.Context, now int64) {
	r.rig.TakeEnded(func(ep int) { r.lose(ep, now) })
	if r.silence != nil && now >= r.nextCheck {
		r.nextCheck = now + r.interval/8
		r.askSilent(now)
	}
	r.rig.Dialer.Advance(func(ep int, err error) {
		if err != nil {
			r.recorder.errors["connection not opened again"]++
			return
		}
		delete(r.lost, ep)
		e := &r.rig.Endpoints[ep]
		e.Rebind = e.Renew()
		r.heard(int32(ep), now)
		r.rebind.bind(int32(ep), now)
	})
	for ep, tried := range r.lost {
		if now-tried >= reconnectInterval && now < r.times.end && !r.rig.Dialer.IsConnecting(ep) {
			r.lost[ep] = now
			if _, err := r.rig.Dialer.Connect(ctx, ep, *r.rig.Endpoints[ep].Server); err != nil {
				r.recorder.errors["connection not opened again"]++
			}
		}
	}
}

func (r *reconnector) lose(ep int, now int64) {
	if r.rig.Endpoints[ep].Server != nil {
		r.lost[ep] = 0
		r.rebind.lose(int32(ep), now)
	}
}

// askSilent sends keep-alives for endpoints over DTLS that have got nothing for a while: a relay
// that has lost the session is silent.
func (r *reconnector) askSilent(now int64) {
	for ep := range r.silence {
		s := &r.silence[ep]
		if now-max(s.heard, s.asked) < r.interval {
			continue
		}
		if _, lost := r.lost[ep]; lost {
			continue
		}
		s.asked = now
		if s.unanswered++; s.unanswered > maxUnanswered {
			r.lose(ep, now)
			continue
		}
		r.sender.sendKeepalive(ep, now < r.times.end)
	}
}
