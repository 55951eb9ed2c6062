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
			// What the machine drops in front of a relay that was not running is
			// no doing of the relay's: such an attack decides nothing about loss.
			lost := uint64(0)
			for try := 1; ; try++ {
				before, dropped := f.SettleTo(lost), l.dropped()
				l.scan(packet, own, 100_000/try)
				after := f.Settle()
				if l.dropped() == dropped {
					after = f.SettleTo(before.Lost())
				}
				lost = after.Lost()
				got := after.Since(before)
				t.Log(got)
				l.unharmed(f.Counts())
				l.alive(f, 5*time.Second)
				if got.Lost() == 0 && got.Sent > 0 {
					break
				}
				if dropped = l.dropped() - dropped; dropped == 0 || try == maxScans || t.Failed() {
					t.Fatalf("%d of %d datagrams were lost, the machine dropped %d", got.Lost(), got.Sent, dropped)
				}
			}
		})
	}
}

// maxScans is how often a machine may be too busy to deliver a scan.
const maxScans = 5

// scan sends a packet from every port of the first client, its own as one of the
// last.
func (l *lab) scan(packet []byte, own uint64, rate int) {
	l.Helper()
	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()
	o := l.spoofer(l.net.Clients).Flood(ctx, rate, func(n uint64) []byte {
		if n == 1<<16-1 {
			cancel()
		}
		SetSource(packet, netip.AddrPortFrom(FirstClient, uint16(own+1<<15+n)))
		return packet
	})
	time.Sleep(2 * time.Second) // A CLOSE that waits would have worked by now.
	l.Logf("%d forged in %v", o.Sent, o.Took.Round(time.Millisecond))
	if o.Sent < 1<<16 {
		l.Errorf("only %d ports were tried", o.Sent)
	}
}
