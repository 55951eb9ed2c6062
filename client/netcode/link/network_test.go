package link_test

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/proto"
)

func open(t testing.TB, w *link.Network, at address.Addr) *end {
	t.Helper()
	n, err := w.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	return newEnd(t, n)
}

// pair returns two numbered nodes.
func pair(t testing.TB, w *link.Network) (_ *link.Network, a, b *end) {
	t.Helper()
	return w, open(t, w, address.Addr{}), open(t, w, address.Addr{})
}

func TestStepDelivers(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, new(link.Network))
	for i := range 3 {
		a.say(t, b.Local(), "%d", i)
	}
	a.say(t, b.Local(), "")
	b.quiet(t)
	if got := w.Step(); got != 4 {
		t.Errorf("%d arrived, want 4", got)
	}
	for _, want := range []string{"0", "1", "2", ""} {
		b.expect(t, link.Datagram, a.Local(), want)
	}
	b.quiet(t)
	if st := b.Stats(); st.Received != 4 || st.ReceivedBytes != 3 || a.Stats().Sent != 4 || a.Stats().SentBytes != 3 {
		t.Errorf("stats %+v and %+v", a.Stats(), st)
	}
}

// TestStepIsATick: an answer to what a step delivers waits for the next step.
func TestStepIsATick(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, new(link.Network))
	a.say(t, b.Local(), "ping")
	w.Step()
	b.expect(t, link.Datagram, a.Local(), "ping")
	b.say(t, a.Local(), "pong")
	a.quiet(t)
	w.Step()
	a.expect(t, link.Datagram, b.Local(), "pong")
}

func TestNetworkAddresses(t *testing.T) {
	t.Parallel()
	w := new(link.Network)
	open(t, w, link.NodeAddr(1))
	if got := open(t, w, address.Addr{}).Local(); got != link.NodeAddr(2) {
		t.Errorf("the first free node is %v, want node 2", got)
	}
	id := address.FromAllocation(proto.AllocationID{15: 1})
	if got := open(t, w, id).Local(); got != id {
		t.Errorf("node at %v, want %v", got, id)
	}
	if _, err := w.Open(link.NodeAddr(1)); err != link.ErrAddr {
		t.Errorf("a second node 1: %v", err)
	}
	if got := link.NodeAddr(7).String(); got != "[2001:db8:0:7::]:7777" {
		t.Errorf("node 7 is at %s", got)
	}
	ap, _ := link.NodeAddr(9).UDP()
	if _, err := w.Open(address.FromUDP(netipPort(ap, 0))); err != link.ErrAddr {
		t.Errorf("a node at port 0: %v", err)
	}
}

func TestNodeRefuses(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, new(link.Network))
	if err := a.Send(b.Local(), make([]byte, link.MaxDatagram+1)); err != link.ErrTooLarge {
		t.Errorf("too large: %v", err)
	}
	if err := a.Send(address.Addr{}, nil); err != link.ErrAddr {
		t.Errorf("to nowhere: %v", err)
	}
	a.say(t, link.NodeAddr(99), "anybody?")
	if got := a.Stats().Unreachable; got != 1 || w.Step() != 0 {
		t.Errorf("%d unreachable", got)
	}
	a.say(t, b.Local(), "does not fit")
	a.say(t, b.Local(), "fits")
	w.Step()
	if ev := b.Receive(make([]byte, 4)); ev.N != 4 || b.Stats().Discarded != 1 {
		t.Errorf("%+v after %+v", ev, b.Stats())
	}
	if err := a.Close(); err != nil || a.Close() != nil {
		t.Errorf("close: %v", err)
	}
	if err := a.Send(b.Local(), nil); err != net.ErrClosed {
		t.Errorf("send after close: %v", err)
	}
	a.quiet(t)
}

func TestNetworkQueuesAreBounded(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, link.NewSmallNetwork(false, 3, 5))
	for i := range 7 {
		a.say(t, b.Local(), "%d", i)
	}
	if got := w.Step(); got != 3 || a.Stats().QueueFull != 2 || b.Stats().QueueFull != 2 {
		t.Errorf("%d arrived, %+v and %+v", got, a.Stats(), b.Stats())
	}
	for i := range 3 {
		b.expect(t, link.Datagram, a.Local(), fmt.Sprint(i))
	}
	b.quiet(t)
}

func TestMove(t *testing.T) {
	t.Parallel()
	w, a, b := pair(t, new(link.Network))
	old := a.Local()
	b.say(t, old, "lost")
	if err := w.Move(old, link.NodeAddr(77)); err != nil {
		t.Fatal(err)
	}
	b.say(t, link.NodeAddr(77), "found")
	a.say(t, b.Local(), "moved")
	w.Step()
	a.expect(t, link.Datagram, b.Local(), "found")
	a.quiet(t)
	b.expect(t, link.Datagram, link.NodeAddr(77), "moved")
	if err := w.Move(a.Local(), b.Local()); err != link.ErrAddr {
		t.Errorf("to where another is: %v", err)
	}
	if err := w.Move(old, link.NodeAddr(78)); err != link.ErrAddr {
		t.Errorf("from where no node is: %v", err)
	}
	if _, err := w.Open(old); err != nil {
		t.Errorf("the old place is not free: %v", err)
	}
}

func TestImmediate(t *testing.T) {
	t.Parallel()
	_, a, b := pair(t, &link.Network{Immediate: true})
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range 100 {
			a.say(t, b.Local(), "%d", i)
		}
	})
	for i := range 100 {
		b.expect(t, link.Datagram, a.Local(), fmt.Sprint(i))
	}
	sender.Wait()
}

func TestNodeAllocs(t *testing.T) {
	w, a, b := pair(t, new(link.Network))
	to, pkt := b.Local(), make([]byte, 1200)
	noAllocs(t, func() {
		if a.Send(to, pkt) != nil || w.Step() != 1 || b.Receive(b.buf).N != len(pkt) {
			t.Fatal("a datagram went astray")
		}
	})
}
