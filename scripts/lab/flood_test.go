//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestFloodMalformed verifies that a flood of malformed datagrams costs the
// relay no lasting memory or descriptors, and players at most 0.1 % loss and 2
// ms of delay.
func TestFloodMalformed(t *testing.T) {
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(100, 30))
	rubbish := l.spoofedPackets(func() []byte { return Malformed(l.rng) })
	l.flood(100_000, 500*time.Millisecond, rubbish) // warm-up: one-time allocations happen now
	f.Settle()
	f.Delays()
	time.Sleep(*floodDuration / 3)
	calm := Quantile(f.Delays(), 0.99)
	before, heap, files := f.Settle(), l.rss(), l.files()
	in, drops := l.metric(datagramsIn), l.metric(kernelDrops)
	o := l.flood(100_000, *floodDuration, rubbish)
	p99 := Quantile(f.Delays(), 0.99)
	c := f.Settle().Since(before)
	grown := l.rss() - heap
	t.Logf("honest flows: %v; p99 of delay %v, before the flood %v", c, p99, calm)
	t.Logf("relay took %.0f, kernel dropped %.0f; RSS %+d KiB to %d MiB", l.metric(datagramsIn)-in, l.metric(kernelDrops)-drops,
		grown>>10, l.rss()/mebi)
	if grown > 32*mebi {
		t.Errorf("RSS grew by %d MiB under %d datagrams", grown/mebi, o.Sent)
	}
	// The connection of the metrics request closes some time after it.
	testkit.Eventually(t, "there are no more descriptors than before", func() bool { return l.files() <= files })
	if *long && float64(c.Lost()) > 0.001*float64(c.Sent) {
		t.Errorf("honest flows lost %d of %d, goal 0.1 %%", c.Lost(), c.Sent)
	}
	if *long && !l.slow && p99 > calm+2*time.Millisecond {
		t.Errorf("p99 of delay rose from %v to %v, goal at most 2 ms more", calm, p99)
	}
	l.requireNoFailures(f.Counts())
	l.requireTraffic(f, 10*time.Second)
	recordAttack(t, attackResult{
		attack: "flood of malformed datagrams", rate: perSecond(o.PerSecond(), "datagrams"), honest: delivered(c),
		p99: p99, state: fmt.Sprintf("%+d KiB", grown>>10), slow: l.slow,
	})
}

func (l *lab) files() int {
	l.Helper()
	n, err := l.relay.Files()
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// TestFloodBinds verifies that legitimate BINDs are answered during floods of
// BINDs without a valid MAC and of replayed ones. The players bind repeatedly
// with higher nonces, since allocations cannot be made fast enough.
func TestFloodBinds(t *testing.T) {
	l := newLab(t, nil)
	cfg := l.players(500, 2)
	cfg.RebindEvery = time.Second
	f, _ := l.fleet(cfg)
	received := l.counter(l.net.Clients, AttackerReplyRange())
	captured := f.Captured()
	for _, c := range []struct {
		name string
		rate int
		next func() []byte
	}{
		{"junk", 100_000, func() []byte { return Messages(l.rng)[0] }},
		{"valid header, wrong MAC", 50_000, func() []byte {
			b := append([]byte(nil), captured[l.rng.IntN(len(captured))]...)
			b[6] = 0xff // a nonce higher than the current one
			b[len(b)-1-l.rng.IntN(len(proto.Bind{}.MAC))] ^= 1 << l.rng.IntN(8)
			return b
		}},
		{"replay", 50_000, func() []byte { return captured[l.rng.IntN(len(captured))] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &lab{T: t, net: l.net, relay: l.relay, rng: l.rng}
			packets := l.spoofedPackets(c.next)
			before, answers := f.Settle(), len(f.Rebinds())
			f.Delays()
			o := l.flood(c.rate, *floodDuration/2, packets)
			p99 := Quantile(f.Delays(), 0.99)
			time.Sleep(time.Second) // Late answers are counted now.
			got := f.Settle().Since(before)
			all := f.Rebinds()
			t.Logf("honest: %v", got)
			t.Logf("%d answers, over all floods p50 %v, p99 %v, longest %v",
				len(all)-answers, Quantile(all, 0.5), Quantile(all, 0.99), Quantile(all, 1))
			if got.Rebinds == 0 {
				t.Error("no player bound")
			}
			if *long && float64(got.RebindsLate) > 0.001*float64(got.Rebinds) {
				t.Errorf("%d of %d honest BINDs had no answer within 1 s, goal 0.1 %%", got.RebindsLate, got.Rebinds)
			}
			if *long && float64(got.Lost()) > 0.001*float64(got.Sent) {
				t.Errorf("RELAY lost %d of %d, goal 0.1 %%", got.Lost(), got.Sent)
			}
			if h := received.Received(); h.Types[int(proto.TypeBindReceived)] != 0 {
				t.Errorf("a forged BIND was accepted: %+v", h)
			}
			l.requireNoFailures(f.Counts())
			recordAttack(t, attackResult{
				attack: "flood of BINDs: " + c.name, rate: perSecond(o.PerSecond(), "BINDs"), p99: p99,
				honest: fmt.Sprintf("%s, %d of %d BINDs late", delivered(got), got.RebindsLate, got.Rebinds), slow: l.slow,
			})
		})
	}
	l.requireTraffic(f, 10*time.Second)
}

// TestScan verifies that forged CLOSE and DISCONNECT messages from every port
// of a player's address do not disturb its match.
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
			// The scan tries the right port late: before the relay detects the attack,
			// the forged datagrams look like the player's.
			own := uint64(f.sides[1].sockets[0].group.Addr().Port())
			l.requireTraffic(f, 5*time.Second)
			// Drops by the kernel while the relay's processor was busy elsewhere
			// are not the relay's fault: such a scan is repeated.
			lost := uint64(0)
			for try := 1; ; try++ {
				before, dropped := f.SettleTo(lost), l.droppedDatagrams()
				l.scan(packet, own, 100_000/try)
				after := f.Settle()
				if l.droppedDatagrams() == dropped {
					after = f.SettleTo(before.Lost())
				}
				lost = after.Lost()
				got := after.Since(before)
				t.Log(got)
				l.requireNoFailures(f.Counts())
				l.requireTraffic(f, 5*time.Second)
				if got.Lost() == 0 && got.Sent > 0 {
					break
				}
				if dropped = l.droppedDatagrams() - dropped; dropped == 0 || try == maxScans || t.Failed() {
					t.Fatalf("%d of %d datagrams were lost, the machine dropped %d", got.Lost(), got.Sent, dropped)
				}
			}
			recordAttack(t, attackResult{
				attack: "forged " + c.name + " from every port", rate: "65,536 datagrams", honest: "all matches continue",
			})
		})
	}
}

// maxScans bounds the repetitions of a scan during which the kernel dropped
// datagrams.
const maxScans = 5

// scan sends a packet from every port of the first client; own comes in the
// middle.
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
	time.Sleep(2 * time.Second) // A deferred CLOSE would have taken effect by now.
	l.Logf("%d forged in %v", o.Sent, o.Elapsed.Round(time.Millisecond))
	if o.Sent < 1<<16 {
		l.Errorf("only %d ports were tried", o.Sent)
	}
}
