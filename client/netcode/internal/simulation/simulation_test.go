package simulation_test

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

const ms = time.Millisecond

func inOrder(all []arrival) bool {
	return slices.IsSortedFunc(all, func(a, b arrival) int { return int(a.number) - int(b.number) })
}

func TestOffTouchesNothing(t *testing.T) {
	both(t, link.Conditions{}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 200, in)
		if len(all) != 200 || !inOrder(all) {
			t.Fatalf("%d of 200 came", len(all))
		}
		for _, a := range all {
			if a.tick != int(a.number) || a.bytes[4:] != string(make([]byte, 36)) {
				t.Fatalf("%+v", a)
			}
		}
		if c := b.counts(in); c != (simulation.Counts{Passed: 200}) {
			t.Errorf("%+v", c)
		}
	})
}

func TestDelayIsExact(t *testing.T) {
	both(t, link.Conditions{Delay: 25 * ms}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 200, in)
		if len(all) != 200 || !inOrder(all) {
			t.Fatalf("%d of 200 came", len(all))
		}
		for _, a := range all {
			if a.tick != int(a.number)+25 {
				t.Fatalf("%+v", a)
			}
		}
	})
}

func TestJitter(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		p := link.Conditions{Delay: 20 * ms, Jitter: 10 * ms, Ordered: ordered}
		both(t, p, func(t *testing.T, b *testNode, in bool) {
			all := b.through(t, 500, in)
			if len(all) != 500 || inOrder(all) != ordered {
				t.Fatalf("%d of 500 came, in order %v", len(all), inOrder(all))
			}
			least, most := 1000, 0
			for _, a := range all {
				took := a.tick - int(a.number)
				least, most = min(least, took), max(most, took)
			}
			if least < 10 || most > 30 || most-least < 10 {
				t.Errorf("took %d to %d ms, want 10 to 30", least, most)
			}
		})
	}
}

func TestJitterIsNotBelowZero(t *testing.T) {
	both(t, link.Conditions{Delay: 1 * ms, Jitter: 10 * ms}, func(t *testing.T, b *testNode, in bool) {
		at := 0
		for _, a := range b.through(t, 500, in) {
			if a.tick == int(a.number) {
				at++
			}
		}
		if at < 150 || at > 300 { // 45 % in the long run.
			t.Errorf("%d of 500 came at once", at)
		}
	})
}

func TestLoss(t *testing.T) {
	both(t, link.Conditions{Loss: 10}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 2000, in)
		c := b.counts(in)
		if len(all) != int(c.Passed) || c.Passed+c.Lost != 2000 || c.Lost < 150 || c.Lost > 250 || !inOrder(all) {
			t.Errorf("%d came, %+v", len(all), c)
		}
	})
	both(t, link.Conditions{Loss: 100}, func(t *testing.T, b *testNode, in bool) {
		if all := b.through(t, 500, in); len(all) != 0 {
			t.Errorf("%d came", len(all))
		}
	})
}

func TestLossEvery(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		both(t, link.Conditions{LossEvery: n}, func(t *testing.T, b *testNode, in bool) {
			all := b.through(t, 70, in)
			if want := 70 - 70/n; len(all) != want {
				t.Errorf("%d came, want %d", len(all), want)
			}
			for _, a := range all {
				if int(a.number)%n == 0 {
					t.Errorf("%d came", a.number)
				}
			}
		})
	}
}

func TestDuplicate(t *testing.T) {
	both(t, link.Conditions{Duplicate: 100, Delay: 5 * ms, Jitter: 5 * ms}, func(t *testing.T, b *testNode, in bool) {
		seen := map[uint32]int{}
		for _, a := range b.through(t, 200, in) {
			seen[a.number]++
		}
		for i := range uint32(200) {
			if seen[i] != 2 {
				t.Fatalf("datagram %d came %d times", i, seen[i])
			}
		}
		if c := b.counts(in); c.Duplicated != 200 || c.Passed != 400 {
			t.Errorf("%+v", c)
		}
	})
	both(t, link.Conditions{Duplicate: 20}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 1000, in)
		if c := b.counts(in); c.Duplicated < 150 || c.Duplicated > 250 || len(all) != 1000+int(c.Duplicated) || !inOrder(all) {
			t.Errorf("%d came, %+v", len(all), c)
		}
	})
}

func TestReorder(t *testing.T) {
	both(t, link.Conditions{Reorder: 10, ReorderBy: 5 * ms}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 1000, in)
		c := b.counts(in)
		if len(all) != 1000 || inOrder(all) || c.Reordered < 60 || c.Reordered > 140 {
			t.Fatalf("%d came, in order %v, %+v", len(all), inOrder(all), c)
		}
		late := 0
		for _, a := range all {
			took := a.tick - int(a.number)
			if took < 0 || took > 5 {
				t.Fatalf("%+v", a)
			}
			if took > 0 {
				late++
			}
		}
		if late != int(c.Reordered) {
			t.Errorf("%d late, %d reordered", late, c.Reordered)
		}
	})
}

func TestCorrupt(t *testing.T) {
	both(t, link.Conditions{Corrupt: 100, CorruptFrom: 10}, func(t *testing.T, b *testNode, in bool) {
		all := b.through(t, 500, in)
		if len(all) != 500 || !inOrder(all) { // The number is before byte 10.
			t.Fatalf("%d came", len(all))
		}
		for _, a := range all {
			tail := a.bytes[10:]
			if len(a.bytes) != 40 || a.bytes[4:10] != string(make([]byte, 6)) || tail == string(make([]byte, 30)) {
				t.Fatalf("%x", a.bytes)
			}
		}
		if c := b.counts(in); c.Corrupted != 500 {
			t.Errorf("%+v", c)
		}
	})
}

// TestCorruptLeavesTheCaller: the bytes that are sent stay what they were, and
// what has no byte to touch passes.
func TestCorruptLeavesTheCaller(t *testing.T) {
	b := newTestNode(t, simulation.Config{Out: link.Conditions{Corrupt: 100, Duplicate: 100}}, false)
	pkt := []byte("as it was")
	if err := b.sim.Send(b.far.Local(), pkt); err != nil || string(pkt) != "as it was" {
		t.Errorf("%q, %v", pkt, err)
	}
	all := b.drain(b.far)
	if len(all) != 2 || all[0].bytes != all[1].bytes || all[0].bytes == "as it was" {
		t.Errorf("%v", all)
	}
	_ = b.sim.Send(b.far.Local(), nil)
	if all := b.drain(b.far); len(all) != 2 || b.counts(false).Corrupted != 1 {
		t.Errorf("%v, %+v", all, b.counts(false))
	}
}

func TestMTU(t *testing.T) {
	both(t, link.Conditions{MTU: 39}, func(t *testing.T, b *testNode, in bool) {
		if all := b.through(t, 10, in); len(all) != 0 || b.counts(in).TooLarge != 10 {
			t.Errorf("%d came, %+v", len(all), b.counts(in))
		}
	})
	both(t, link.Conditions{MTU: 40}, func(t *testing.T, b *testNode, in bool) {
		if all := b.through(t, 10, in); len(all) != 10 {
			t.Errorf("%d came", len(all))
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	p := link.Conditions{Delay: 50 * ms}
	b := newTestNode(t, simulation.Config{Out: p, In: p, Queue: 20}, false)
	for range 2 { // Room comes back.
		for range 30 {
			_ = b.sim.Send(b.far.Local(), []byte("out."))
			_ = b.far.Send(b.sim.Local(), []byte("in.."))
		}
		b.drain(b.sim)
		out, in := b.sim.Counts()
		if out.Waiting != 20 || in.Waiting != 20 {
			t.Fatalf("%+v, %+v", out, in)
		}
		b.ticks += 100
		b.tick()
		if far, near := b.drain(b.far), b.drain(b.sim); len(far) != 20 || len(near) != 20 {
			t.Fatalf("%d and %d came", len(far), len(near))
		}
	}
	if out, in := b.sim.Counts(); out.QueueFull != 20 || in.QueueFull != 20 || out.Passed != 40 {
		t.Errorf("%+v, %+v", out, in)
	}
}

// TestTime: it does not go back, and after a long pause all comes in the order
// of its time.
func TestTime(t *testing.T) {
	b := newTestNode(t, simulation.Config{Out: link.Conditions{Delay: 100 * ms, Jitter: 90 * ms}}, false)
	b.ticks = 50
	b.tick()
	for i := range 50 {
		_ = b.sim.Send(b.far.Local(), []byte{0, 0, 0, byte(i)})
	}
	b.sim.Advance(start.Add(-time.Hour))
	if all := b.drain(b.far); len(all) != 0 {
		t.Errorf("%d came in the past", len(all))
	}
	b.sim.Advance(start.Add(time.Hour))
	if all := b.drain(b.far); len(all) != 50 || inOrder(all) {
		t.Errorf("%d came, in order %v", len(all), inOrder(all))
	}
	b.sim.Advance(start)
	_ = b.sim.Send(b.far.Local(), []byte("later"))
	b.sim.Advance(start.Add(time.Hour + 200*ms))
	if all := b.drain(b.far); len(all) != 1 {
		t.Errorf("%d came after the clock went back", len(all))
	}
}

func TestSet(t *testing.T) {
	b := newTestNode(t, simulation.Config{}, false)
	if err := errors.Join(b.sim.SetOut(link.Conditions{Loss: 100}), b.sim.SetIn(link.Conditions{Delay: ms})); err != nil {
		t.Fatal(err)
	}
	if all := b.through(t, 10, false); len(all) != 0 {
		t.Errorf("%d came", len(all))
	}
	if all := b.through(t, 10, true); len(all) != 10 {
		t.Errorf("%d came", len(all))
	}
	bad := link.Conditions{Loss: 101}
	if err := b.sim.SetOut(bad); !errors.Is(err, link.ErrConditions) {
		t.Errorf("101 %%: %v", err)
	}
	if err := b.sim.SetIn(bad); !errors.Is(err, link.ErrConditions) {
		t.Errorf("101 %%: %v", err)
	}
	for _, cfg := range []simulation.Config{{Out: bad}, {In: bad}, {Queue: -1}} {
		if _, err := simulation.New(b.bare, cfg); !errors.Is(err, link.ErrConditions) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestEventsKeepTheirPlace: what a peer sent before it left is received before
// the news, however long it takes.
func TestEventsKeepTheirPlace(t *testing.T) {
	p := link.Conditions{Delay: 30 * ms, Jitter: 20 * ms}
	b := newTestNode(t, simulation.Config{Out: p, In: p}, true)
	if err := b.network.Link(b.far.Local(), b.bare.Local()); err != nil {
		t.Fatal(err)
	}
	if e := b.sim.Receive(b.buf); e.Kind != link.Joined || e.Addr != b.far.Local() {
		t.Fatalf("%+v", e)
	}
	for range 20 {
		_ = b.far.Send(b.bare.Local(), []byte("last words"))
	}
	b.far.Disconnect(b.bare.Local())
	if e := b.sim.Receive(b.buf); e.Kind != link.Nothing {
		t.Fatalf("%+v", e)
	}
	words, left := 0, false
	for range 100 {
		b.tick()
		for e := b.sim.Receive(b.buf); e.Kind != link.Nothing; e = b.sim.Receive(b.buf) {
			if left || e.Addr != b.far.Local() {
				t.Fatalf("%+v after the news", e)
			}
			if left = e.Kind == link.Left; !left {
				words++
			}
		}
	}
	if words != 20 || !left {
		t.Errorf("%d datagrams, left %v", words, left)
	}
}

// TestDisconnectWaits: a datagram before Disconnect arrives first although it is delayed.
func TestDisconnectWaits(t *testing.T) {
	p := link.Conditions{Delay: 30 * ms, Jitter: 20 * ms}
	b := newTestNode(t, simulation.Config{Out: p, In: p}, true)
	if err := b.network.Link(b.far.Local(), b.bare.Local()); err != nil {
		t.Fatal(err)
	}
	b.drain(b.sim)
	b.drain(b.far)
	_ = b.far.Send(b.bare.Local(), []byte("unread"))
	b.drain(b.sim)
	for range 20 {
		_ = b.sim.Send(b.far.Local(), []byte("last words"))
	}
	b.sim.Disconnect(b.far.Local())
	words := 0
	for range 60 {
		b.tick()
		_ = b.far.Send(b.bare.Local(), []byte("not wanted"))
		words += len(b.drain(b.far))
		if all := b.drain(b.sim); len(all) != 0 {
			t.Errorf("%v came from a peer that was disconnected", all)
		}
	}
	if words != 20 {
		t.Errorf("%d of 20 came", words)
	}
	if b.far.Stats().Unreachable == 0 {
		t.Errorf("the link is still there: %+v", b.far.Stats())
	}
}

func TestClose(t *testing.T) {
	b := newTestNode(t, simulation.Config{Out: link.Conditions{Delay: time.Second}, In: link.Conditions{Delay: ms}}, false)
	_ = b.sim.Send(b.far.Local(), []byte("last words"))
	_ = b.far.Send(b.sim.Local(), []byte("unread"))
	b.drain(b.sim)
	if err := b.sim.Close(); err != nil || b.sim.Close() != nil {
		t.Errorf("close: %v", err)
	}
	if all := b.drain(b.far); len(all) != 1 || all[0].bytes != "last words" {
		t.Errorf("%v came", all)
	}
	b.tick()
	if err := b.sim.Send(b.far.Local(), nil); err != net.ErrClosed {
		t.Errorf("send after close: %v", err)
	}
	if all := b.drain(b.sim); len(all) != 0 {
		t.Errorf("%v came after close", all)
	}
	if err := newTestNode(t, simulation.Config{}, false).sim.Send(b.far.Local(),
		make([]byte, link.MaxDatagram+1)); err != link.ErrTooLarge {
		t.Errorf("too large: %v", err)
	}
}
