package client

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// TestTwoSessions: of two sessions with one allocation one ends, with the reason, and the other plays on. That is so
// if the game speaks, and if it does not, at each round trip.
func TestTwoSessions(t *testing.T) {
	t.Parallel()
	for _, talks := range []bool{false, true} {
		for _, rtt := range []time.Duration{10, 40, 200, 600} {
			t.Run(fmt.Sprintf("%t/%d", talks, rtt), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.oneWay = rtt * time.Millisecond / 2
				first := w.joiner()
				first.stop = !talks
				second := &player{Session: idle(t, Config{Ticket: joinerTicket(w.relay.addr, joinerID)})}
				w.players = append(w.players, second)
				beginBind(second.Session, w.now)
				took := w.until(time.Minute, func() bool { return first.Err() != nil || second.Err() != nil })
				ended, lives := first, second
				if second.Err() != nil {
					ended, lives = second, first
				}
				if ended.Err() != ErrInUse {
					t.Fatalf("after %v: %v", took, ended.Err())
				}
				t.Logf("ended after %v: %+v", took, ended.Stats())
				w.pass(3 * time.Second)
				w.relay.with(func() { w.relay.seen, w.relay.nonces = map[proto.Type]int{}, nil })
				w.pass(time.Minute)
				if lives.Err() != nil || len(w.relay.nonces) != 0 || !w.relay.places[joinerID].endpoint.IsValid() {
					t.Errorf("the other one: %v; %d BINDs", lives.Err(), len(w.relay.nonces))
				}
			})
		}
	}
}

// TestFlappingNAT: a NAT that moves a player again and again ends no session, nor do loss and long round trips besides.
func TestFlappingNAT(t *testing.T) {
	t.Parallel()
	for _, talks := range []bool{false, true} {
		for _, rtt := range []time.Duration{10, 40, 200, 600} {
			for _, loss := range []float64{0, 0.05, 0.2} {
				for _, period := range []time.Duration{1000, 5000, 7000} {
					if rtt == 600 && period == 1000 {
						continue // No BIND is answered in that time.
					}
					t.Run(fmt.Sprintf("%t/%d/%v/%d", talks, rtt, loss, period), func(t *testing.T) {
						t.Parallel()
						w := newWorld(t)
						w.oneWay, w.loss = rtt*time.Millisecond/2, loss
						w.joiner().stop = !talks
						for port := uint16(4000); w.now < int64(2*time.Minute); port++ {
							w.joiner().nat = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)
							w.pass(period * time.Millisecond)
							// A relay that hears none of the PINGs of 10 s ends the allocation.
							if err := w.joiner().Err(); err == ErrInUse || err != nil && period > 1000 {
								t.Fatalf("after %v: %v", time.Duration(w.now), err)
							} else if err != nil {
								return
							}
						}
					})
				}
			}
		}
	}
}

// TestRestartedRelay: nor does a relay that restarts each 8 s, and is away for 2 s or 4 s.
func TestRestartedRelay(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{2 * time.Second, 4 * time.Second} {
		w := newWorld(t)
		w.joiner().stop = false
		for range 10 {
			w.killed = true
			w.pass(away)
			w.killed = false
			for _, p := range w.relay.places {
				p.endpoint = netip.AddrPort{}
				w.heard[p.ticket.ID] = w.now
			}
			w.pass(8*time.Second - away)
			if err := w.joiner().Err(); err != nil {
				t.Fatalf("away for %v, after %v: %v", away, time.Duration(w.now), err)
			}
		}
	}
}
