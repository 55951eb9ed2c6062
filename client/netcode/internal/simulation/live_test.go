package simulation_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// exchange sends n numbered datagrams from one link to another in real time,
// until all that were not lost have come. Both lose some.
func exchange(t *testing.T, from, to *simulation.Link, n int) {
	t.Helper()
	buf, got := make([]byte, link.MaxDatagram), 0
	give := time.Now().Add(patience)
	for i := 0; ; i++ {
		now := time.Now()
		from.Advance(now)
		to.Advance(now)
		if i < n {
			if err := from.Send(to.Local(), binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
				t.Fatal(err)
			}
		}
		from.Flush()
		for e := to.Receive(buf); e.Kind != link.Nothing; e = to.Receive(buf) {
			if e.Kind == link.Datagram && e.Addr == from.Local() {
				got++
			}
		}
		out, _ := from.Counts()
		_, in := to.Counts()
		if i >= n && out.Waiting+in.Waiting == 0 && int(in.Passed) == got && in.Passed+in.Lost == out.Passed {
			if out.Lost == 0 || in.Lost == 0 || out.Passed+out.Lost != uint64(n) {
				t.Errorf("%+v and %+v", out, in)
			}
			return
		}
		if now.After(give) {
			t.Fatalf("%d came of %+v and %+v", got, out, in)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func bad(t *testing.T, l link.Link, seed uint64) *simulation.Link {
	t.Helper()
	p := link.Conditions{Delay: 5 * ms, Jitter: 4 * ms, Loss: 5}
	s, err := simulation.New(l, simulation.Config{Seed: seed, Out: p, In: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestOverUDP(t *testing.T) {
	var ends []*simulation.Link
	for i := range 2 {
		u, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, bad(t, u, uint64(i)))
	}
	exchange(t, ends[0], ends[1], 300)
}

// TestOverRelay is a host and a player on a live relay, with a bad network at
// each of them.
func TestOverRelay(t *testing.T) {
	relay := enginetest.Start(t, engine.Config{})
	reserved := relay.Host("host", 1)
	host := overRelay(t, relay, reserved, 1)
	player := overRelay(t, relay, relay.Joiner("player", reserved.ID), 2)
	buf := make([]byte, link.MaxDatagram)
	if e := player.Receive(buf); e.Kind != link.Joined || e.Addr != host.Local() || player.Overhead() != 38 {
		t.Fatalf("%+v", e)
	}
	exchange(t, player, host, 300)
	exchange(t, host, player, 300)
}

func overRelay(t *testing.T, relay *enginetest.Relay, res alloc.Reservation, seed uint64) *simulation.Link {
	t.Helper()
	ticket := client.Ticket{Server: relay.Addr(), ID: res.ID, Key: res.Key, ConnectionData: res.ConnectionData[:]}
	if res.HostConnectionData != res.ConnectionData {
		ticket.HostConnectionData = res.HostConnectionData[:]
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, _, err := link.OpenRelay(ctx, client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	return bad(t, r, seed)
}

func TestSimAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	p := link.Conditions{Delay: 20 * ms, Jitter: 15 * ms, Loss: 2, Duplicate: 20, Reorder: 5, Corrupt: 5}
	b := newTestNode(t, simulation.Config{Out: p, In: p}, false)
	pkt, to, near := make([]byte, 1200), b.far.Local(), b.sim.Local()
	step := func() {
		b.tick()
		if b.sim.Send(to, pkt) != nil || b.far.Send(near, pkt) != nil {
			t.Fatal("not sent")
		}
		for b.sim.Receive(b.buf).Kind != link.Nothing {
		}
		for b.far.Receive(b.buf).Kind != link.Nothing {
		}
	}
	for range 5000 {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n != 0 {
		t.Errorf("%v allocations per tick", n)
	}
}

// FuzzSim: whatever is asked of it in whatever order, it does not panic, and
// every datagram is accounted for.
func FuzzSim(f *testing.F) {
	f.Add(uint64(1), uint16(20), uint16(10), uint8(5), []byte("sendrecv\x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Add(uint64(2), uint16(0), uint16(500), uint8(100), []byte{0, 0, 0, 3, 3, 1, 2, 4, 5, 0, 3, 6, 7})
	f.Fuzz(func(t *testing.T, seed uint64, delay, jitter uint16, chance uint8, ops []byte) {
		c := float64(chance % 101)
		p := link.Conditions{
			Delay: time.Duration(delay) * ms, Jitter: time.Duration(jitter) * ms / 2,
			Loss: c / 2, Duplicate: c, Reorder: c, Corrupt: c, Ordered: seed%2 == 0,
		}
		if p.Delay > time.Minute || p.Check() != nil {
			t.Skip("not parameters that New takes")
		}
		b := newTestNode(t, simulation.Config{Seed: seed, Out: p, In: p, Queue: 32}, false)
		sent, received := 0, 0
		for i, op := range ops {
			switch op % 8 {
			case 0, 1:
				_ = b.sim.Send(b.far.Local(), ops[i:min(len(ops), i+100)])
				sent++
			case 2:
				_ = b.far.Send(b.sim.Local(), ops[:i])
			case 3:
				b.ticks += int(op)
				b.tick()
			case 4:
				b.drain(b.sim)
			case 5:
				received += len(b.drain(b.far))
			case 6:
				b.sim.Disconnect(b.far.Local())
			case 7:
				_ = b.sim.SetIn(link.Conditions{Loss: float64(op % 101)})
			}
		}
		received += len(b.drain(b.far))
		out, _ := b.sim.Counts()
		news := out.Waiting // and disconnects
		if out.Passed != uint64(received) || uint64(sent)+out.Duplicated > out.Passed+out.Lost+out.QueueFull+uint64(news) {
			t.Fatalf("%d sent, %d received, %s", sent, received, fmt.Sprintf("%+v", out))
		}
	})
}
