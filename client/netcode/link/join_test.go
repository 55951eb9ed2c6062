package link_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

var (
	at4 = address.FromUDP(netip.MustParseAddrPort("192.0.2.1:1"))
	at6 = address.FromUDP(netip.MustParseAddrPort("[fd00::1]:1"))
)

// joinedNode is a node of a network in memory of its own with a peer.
func joinedNode(t *testing.T, at, peer address.Addr) (w *link.Network, here link.Link, far *end) {
	t.Helper()
	w = new(link.Network)
	n, err := w.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	return w, n, open(t, w, peer)
}

// TestJoin: a server receives from players on four kinds of links, and answers over the right one.
func TestJoin(t *testing.T) {
	t.Parallel()
	var networks []*link.Network
	var links []link.Link
	var far []*end
	for _, k := range [][2]address.Addr{
		{at4, address.FromUDP(netip.MustParseAddrPort("192.0.2.9:9"))},
		{at6, address.FromUDP(netip.MustParseAddrPort("[fd00::9]:9"))},
		{address.FromAllocation([16]byte{1}), address.FromAllocation([16]byte{9})},
		{link.NodeAddr(1), link.NodeAddr(9)},
	} {
		w, n, f := joinedNode(t, k[0], k[1])
		networks, links, far = append(networks, w), append(links, n), append(far, f)
	}
	l, err := link.Join(links...)
	if err != nil {
		t.Fatal(err)
	}
	server := newEnd(t, l)
	if server.Local() != at4 || server.Overhead() != 0 {
		t.Errorf("local %v, overhead %d", server.Local(), server.Overhead())
	}
	for i, f := range far {
		f.say(t, links[i].Local(), "hello")
		networks[i].Step()
	}
	for _, f := range far {
		server.expect(t, link.Datagram, f.Local(), "hello")
		server.say(t, f.Local(), "welcome")
	}
	server.quiet(t)
	for i, f := range far {
		networks[i].Step()
		f.expect(t, link.Datagram, links[i].Local(), "welcome")
	}
	if st := server.Stats(); st.Sent != 4 || st.Received != 4 || st.SentBytes != 28 {
		t.Errorf("%+v", st)
	}
	for _, to := range []address.Addr{{}, address.FromUDP(netip.MustParseAddrPort("192.0.2.9:0"))} {
		if err := server.Send(to, nil); err != link.ErrAddr {
			t.Errorf("send to %v: %v", to, err)
		}
	}
	if err := server.Close(); err != nil || server.Send(at4, nil) != net.ErrClosed || server.Dial() != net.ErrClosed {
		t.Errorf("close: %v", err)
	}
}

func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	_, a, _ := joinedNode(t, at6, link.NodeAddr(9))
	_, b, _ := joinedNode(t, address.FromUDP(netip.MustParseAddrPort("[fd00::2]:1")), link.NodeAddr(9))
	for _, links := range [][]link.Link{nil, {a, b}} {
		if _, err := link.Join(links...); err != link.ErrAddr {
			t.Errorf("%d links: %v", len(links), err)
		}
	}
}

// flooded always has a datagram; ending ends at once.
type flooded struct{ link.Link }

func (f flooded) Receive([]byte) link.Event { return link.Event{Kind: link.Datagram, Addr: f.Local()} }

type ending struct {
	link.Link
	err error
}

func (e *ending) Receive([]byte) link.Event { return link.Event{Kind: link.Ended, Err: e.err} }

// TestJoinIsFair: a flooded link does not keep the others from being read.
func TestJoinIsFair(t *testing.T) {
	t.Parallel()
	_, loud, _ := joinedNode(t, at4, link.NodeAddr(9))
	w, quiet, player := joinedNode(t, link.NodeAddr(1), link.NodeAddr(9))
	l, err := link.Join(flooded{loud}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	player.say(t, quiet.Local(), "hello")
	w.Step()
	buf := make([]byte, link.MaxDatagram)
	for range 2 {
		if ev := l.Receive(buf); ev.Addr == player.Local() {
			return
		}
	}
	t.Error("the datagram of the quiet link is not among the first two")
}

// TestJoinEnds: the others go on when a link ends, and Ended comes once, after the last.
func TestJoinEnds(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	_, a, _ := joinedNode(t, at4, link.NodeAddr(9))
	w, b, player := joinedNode(t, link.NodeAddr(1), link.NodeAddr(9))
	l, err := link.Join(&ending{a, first}, b)
	if err != nil {
		t.Fatal(err)
	}
	server := newEnd(t, l)
	player.say(t, b.Local(), "still here")
	w.Step()
	server.expect(t, link.Datagram, player.Local(), "still here")
	server.quiet(t)

	_, c, _ := joinedNode(t, at6, link.NodeAddr(9))
	if l, err = link.Join(&ending{a, first}, &ending{c, second}); err != nil {
		t.Fatal(err)
	}
	l.Advance(time.Now())
	if ev := l.Receive(nil); ev.Kind != link.Ended || !errors.Is(ev.Err, first) || !errors.Is(ev.Err, second) {
		t.Errorf("%+v", ev)
	}
	if ev := l.Receive(nil); ev.Kind != link.Nothing {
		t.Errorf("%+v after the end", ev)
	}
}
