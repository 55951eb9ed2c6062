//go:build lab && linux

package lab

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// TestScan is F6, D1 and D2: a fellow player who knows the ids and the victim's
// address tries every port of it. The session goes on without a loss.
func TestScan(t *testing.T) {
	for _, c := range []struct {
		name    string
		message func(p *player) []byte
	}{
		{"CLOSE", func(p *player) []byte { return proto.Close{ID: p.id}.Append(nil) }},
		{"DISCONNECT", func(p *player) []byte { return proto.Disconnect{From: p.id, To: p.other.id}.Append(nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, nil)
			f, _ := l.fleet(l.players(1, 20))
			joiner := f.players[1]
			packet := AppendIPv4UDP(nil, netip.AddrPortFrom(FirstClient, 1), RelayAddr, c.message(joiner))
			// Ports in an order that does not meet the right one first: until the
			// attack is noticed nothing tells its datagrams from the player's.
			own := uint64(f.sides[1].sockets[0].group.Addr().Port())
			l.alive(f, 5*time.Second)
			s := l.spoofer(l.net.Clients)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := s.Flood(ctx, 100_000, func(n uint64) []byte {
				if n == 1<<16-1 {
					cancel()
				}
				SetSource(packet, netip.AddrPortFrom(FirstClient, uint16(own+1<<15+n)))
				return packet
			})
			time.Sleep(2 * time.Second) // A CLOSE that waits would have worked by now.
			got := f.Settle()
			t.Logf("%d forged in %v: %v", o.Sent, o.Took.Round(time.Millisecond), got)
			if o.Sent < 1<<16 {
				t.Errorf("only %d ports were tried", o.Sent)
			}
			if got.Lost() != 0 {
				t.Errorf("%d of %d datagrams were lost", got.Lost(), got.Sent)
			}
			l.unharmed(got)
			l.alive(f, 5*time.Second)
		})
	}
}
