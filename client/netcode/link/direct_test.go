package link_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const tickLength = 20 * time.Millisecond

// wire is a socket of a network in memory that may lose what is sent, and that records it.
type wire struct {
	link.Link
	lose func(to address.Addr, b []byte) bool
	sent map[address.Addr][][]byte // nil: nothing is recorded
}

func (w *wire) Send(to address.Addr, b []byte) error {
	if w.sent != nil {
		w.sent[to] = append(w.sent[to], append([]byte(nil), b...))
	}
	if w.lose != nil && w.lose(to, b) {
		return nil
	}
	return w.Link.Send(to, b)
}

func loseAll(address.Addr, []byte) bool { return true }

// directEnd is one side with a direct path, and what it received.
type directEnd struct {
	*end
	relay link.Link
	wire  *wire
	got   []string // "kind text"
}

// directNet is a relay and a network for direct paths, with the time of both.
type directNet struct {
	t             testing.TB
	relay, direct *link.Network
	now           time.Time
	ends          []*directEnd
}

func newDirectNet(t testing.TB) *directNet {
	return &directNet{
		t: t, now: time.Unix(1_700_000_000, 0),
		relay: &link.Network{Linked: true}, direct: new(link.Network),
	}
}

func (d *directNet) node(w *link.Network, at address.Addr) link.Link {
	d.t.Helper()
	n, err := w.Open(at)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

func (d *directNet) open() *directEnd {
	d.t.Helper()
	e := &directEnd{relay: d.node(d.relay, address.Addr{})}
	e.wire = &wire{Link: d.node(d.direct, udpAddr("192.0.2.%d:4000", len(d.ends)+1)), sent: map[address.Addr][][]byte{}}
	l, err := link.OpenDirect(e.relay, e.wire)
	if err != nil {
		d.t.Fatal(err)
	}
	e.end = newEnd(d.t, l)
	d.ends = append(d.ends, e)
	return e
}

func (d *directNet) link(a, b interface{ Local() address.Addr }) {
	d.t.Helper()
	if err := d.relay.Link(a.Local(), b.Local()); err != nil {
		d.t.Fatal(err)
	}
}

func udpAddr(format string, args ...any) address.Addr {
	return address.FromUDP(netip.MustParseAddrPort(fmt.Sprintf(format, args...)))
}

// newDirectPair is two sides that the relay has just linked.
func newDirectPair(t testing.TB) (d *directNet, a, b *directEnd) {
	t.Helper()
	d = newDirectNet(t)
	a, b = d.open(), d.open()
	d.link(a, b)
	return d, a, b
}

func (d *directNet) tick() {
	d.now = d.now.Add(tickLength)
	for _, e := range d.ends {
		e.Advance(d.now)
		for ev := e.Receive(e.buf); ev.Kind != link.Nothing; ev = e.Receive(e.buf) {
			e.got = append(e.got, fmt.Sprintf("%v %s", ev.Kind, e.buf[:ev.N]))
		}
		e.Flush()
	}
	d.relay.Step()
	d.direct.Step()
}

func (d *directNet) run(span time.Duration) {
	for range span / tickLength {
		d.tick()
	}
}

// until plays until a condition holds, at most for a span, and returns how long it took.
func (d *directNet) until(span time.Duration, what string, done func() bool) time.Duration {
	d.t.Helper()
	began := d.now
	for !done() {
		if d.now.Sub(began) > span {
			d.t.Fatalf("no %s within %v", what, span)
		}
		d.tick()
	}
	return d.now.Sub(began)
}

// connect waits until both sides of a pair use the direct path.
func (d *directNet) connect(a, b *directEnd) {
	d.t.Helper()
	d.until(2*time.Second, "direct path", func() bool { return a.paths() == 1 && b.paths() == 1 })
	a.got, b.got = nil, nil
}

func (e *directEnd) paths() int { return e.Stats().DirectPaths }

func (e *directEnd) DirectStats() link.DirectCounts { return link.CountDirect(e.Link) }

// talk sends numbers both ways, one each tick, and returns those that did not arrive at b and at a.
func (d *directNet) talk(a, b *directEnd, n int) (lostAtB, lostAtA []int) {
	d.t.Helper()
	a.got, b.got = nil, nil
	for i := range n {
		a.say(d.t, b.Local(), "%d", i)
		b.say(d.t, a.Local(), "%d", i)
		d.tick()
	}
	d.tick()
	return d.missing(b, n), d.missing(a, n)
}

// missing returns the numbers that an end did not receive. Each comes at most once.
func (d *directNet) missing(e *directEnd, n int) (lost []int) {
	d.t.Helper()
	seen := map[string]int{}
	for _, text := range e.got {
		seen[text]++
	}
	for i := range n {
		switch seen[fmt.Sprintf("datagram %d", i)] {
		case 0:
			lost = append(lost, i)
		case 1:
		default:
			d.t.Errorf("%d came twice", i)
		}
	}
	return lost
}

func TestDirectPath(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	before := a.relay.Stats().SentBytes
	if lostB, lostA := d.talk(a, b, 500); len(lostA)+len(lostB) != 0 {
		t.Errorf("lost %v and %v", lostB, lostA)
	}
	for i, e := range []*directEnd{a, b} {
		if st := e.DirectStats(); st.Sent != 500 || st.Received != 500 || st.Dropped != 0 || st.Malformed != 0 || st.Validated != 1 ||
			e.Stats().DirectSent != 500 || e.Stats().DirectReceived != 500 {
			t.Errorf("side %d: %+v", i, st)
		}
	}
	// In these 10 s the relay carries an offer of 39 bytes every 5 s.
	if used := a.relay.Stats().SentBytes - before; used < 39 || used > 3*39 {
		t.Errorf("%d bytes over the relay", used)
	}
	// Nothing is added to a datagram of the game.
	if last := a.wire.sent[b.wire.Local()]; string(last[len(last)-1]) != "499" {
		t.Errorf("the last datagram is %q", last[len(last)-1])
	}
}

// TestDirectOff: a side with direct paths plays over the relay with one that has none.
func TestDirectOff(t *testing.T) {
	t.Parallel()
	d := newDirectNet(t)
	a, plain := d.open(), newEnd(t, d.node(d.relay, address.Addr{}))
	d.link(a, plain)
	signals, datagrams := 0, 0
	for range 6000 { // 2 min
		if err := a.Send(plain.Local(), []byte("hello")); err != nil && len(a.got) > 0 {
			t.Fatal(err)
		}
		d.tick()
		for ev, text := plain.poll(); ev.Kind != link.Nothing; ev, text = plain.poll() {
			if ev.Kind == link.Datagram && text == "hello" {
				datagrams++
			} else if ev.Kind == link.Datagram {
				signals++
			}
		}
	}
	// Attempts at 0, 10, 30 and 70 s, each with three offers.
	if signals == 0 || signals > 12 || datagrams < 5990 || len(a.wire.sent) != 0 {
		t.Errorf("%d signals, %d datagrams, sent to %d addresses", signals, datagrams, len(a.wire.sent))
	}
}

func TestDirectBlocked(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	a.wire.lose, b.wire.lose = loseAll, loseAll
	d.tick()
	if lostB, lostA := d.talk(a, b, 1000); len(lostA)+len(lostB) != 0 {
		t.Errorf("lost %v and %v", lostB, lostA)
	}
	st := a.DirectStats()
	if st.Sent != 0 || st.Validated != 0 || st.Probes == 0 || st.Probes > 10 {
		t.Errorf("%+v", st)
	}
}

// TestDirectOneWay: a path that works in one direction alone is not used, and not given up in turn.
func TestDirectOneWay(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	b.wire.lose = loseAll
	d.tick()
	if lostB, lostA := d.talk(a, b, 1000); len(lostA)+len(lostB) != 0 || a.DirectStats().Sent+b.DirectStats().Sent != 0 {
		t.Errorf("lost %v and %v", lostB, lostA)
	}
}

func TestDirectPathDies(t *testing.T) {
	t.Parallel()
	for name, sides := range map[string][2]bool{"both": {true, true}, "one way": {true, false}, "other way": {false, true}} {
		t.Run(name, func(t *testing.T) {
			d, a, b := newDirectPair(t)
			d.connect(a, b)
			for i, e := range []*directEnd{a, b} {
				if sides[i] {
					e.wire.lose = loseAll
				}
			}
			lostB, lostA := d.talk(a, b, 500)
			const limit = int(2200 * time.Millisecond / tickLength)
			for _, lost := range [][]int{lostB, lostA} {
				if len(lost) > 0 && lost[len(lost)-1] >= limit {
					t.Errorf("number %d is lost, %v after the path died", lost[len(lost)-1], time.Duration(lost[len(lost)-1])*tickLength)
				}
			}
			if len(lostB)+len(lostA) == 0 {
				t.Error("nothing was lost: the path was not in use")
			}
			t.Logf("lost %d and %d datagrams of 50 per second", len(lostB), len(lostA))
			a.wire.lose, b.wire.lose = nil, nil
			took := d.until(time.Minute, "path again", func() bool { return a.paths() == 1 && b.paths() == 1 })
			t.Logf("back after %v", took)
			if lostB, lostA := d.talk(a, b, 100); len(lostB)+len(lostA) != 0 || a.DirectStats().Lost != 1 {
				t.Errorf("lost %v and %v; %+v", lostB, lostA, a.DirectStats())
			}
		})
	}
}

// TestDirectLossy: a lossy path loses its datagrams, but is not given up.
func TestDirectLossy(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	n := 0
	third := func(address.Addr, []byte) bool { n++; return n*7919%10 < 2 }
	a.wire.lose, b.wire.lose = third, third
	d.talk(a, b, 3000)
	if a.DirectStats().Lost+b.DirectStats().Lost != 0 || a.DirectStats().Sent < 2500 {
		t.Errorf("%+v", a.DirectStats())
	}
}

// TestDirectRoams: a player that moves goes on over the relay, and then over its new address.
func TestDirectRoams(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	d.run(10 * time.Second)
	if err := d.direct.Move(b.wire.Local(), udpAddr("198.51.100.9:9")); err != nil {
		t.Fatal(err)
	}
	lostB, lostA := d.talk(a, b, 75) // 1.5 s
	const limit = int(500 * time.Millisecond / tickLength)
	for _, lost := range [][]int{lostB, lostA} {
		if len(lost) > 0 && lost[len(lost)-1] >= limit {
			t.Errorf("number %d is lost, %v after the move", lost[len(lost)-1], time.Duration(lost[len(lost)-1])*tickLength)
		}
	}
	t.Logf("lost %d and %d datagrams of 50 per second", len(lostB), len(lostA))
	if a.paths() != 1 || b.paths() != 1 || len(a.wire.sent[udpAddr("198.51.100.9:9")]) < 10 {
		t.Errorf("%+v\n%+v", a.DirectStats(), b.DirectStats())
	}
}

// TestDirectLeft: the last datagrams over the direct path come before Left.
func TestDirectLeft(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	for range 2 { // Whichever of the two is asked first.
		sent := a.DirectStats().Sent
		for i := range 100 {
			a.say(t, b.Local(), "%d", i)
		}
		a.Disconnect(b.Local())
		if a.DirectStats().Sent != sent+100 {
			t.Fatalf("%+v", a.DirectStats())
		}
		d.run(time.Second)
		if lost := d.missing(b, 100); len(lost) != 0 || b.got[len(b.got)-1] != "left " || len(b.got) != 101 {
			t.Errorf("lost %v; %d events, the last is %q", lost, len(b.got), b.got[len(b.got)-1])
		}
		if a.paths()+b.paths() != 0 {
			t.Error("a path outlives its peer")
		}
		if err := b.Send(a.Local(), []byte("late")); err != nil {
			t.Fatal(err)
		}
		d.link(a, b)
		d.tick()
		d.connect(a, b)
	}
}

// TestDirectSocketEnds: without its socket all goes over the relay.
func TestDirectSocketEnds(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	if err := a.wire.Close(); err != nil {
		t.Fatal(err)
	}
	d.run(3 * time.Second)
	if lostB, lostA := d.talk(a, b, 1000); len(lostB)+len(lostA) != 0 {
		t.Errorf("lost %v and %v", lostB, lostA)
	}
}

func TestDirectRefuses(t *testing.T) {
	t.Parallel()
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	if err := a.Send(b.Local(), []byte("\xfedir and more")); err != link.ErrReserved {
		t.Errorf("reserved bytes: %v", err)
	}
	if err := a.Send(b.Local(), make([]byte, link.MaxDatagram+1)); err != link.ErrTooLarge {
		t.Errorf("too large: %v", err)
	}
	for i, links := range [][2]link.Link{
		{}, {a.relay}, {nil, a.wire}, {a.relay, d.node(d.relay, address.FromAllocation([16]byte{1}))},
	} {
		if _, err := link.OpenDirect(links[0], links[1]); err != link.ErrAddr {
			t.Errorf("links %d: %v", i, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Send(b.Local(), []byte("x")); err != net.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

// TestDirectMany: 50 players of one host, each over a path of its own.
func TestDirectMany(t *testing.T) {
	t.Parallel()
	d := newDirectNet(t)
	host := d.open()
	for range 50 {
		d.link(host, d.open())
	}
	d.until(5*time.Second, "50 paths", func() bool { return host.paths() == 50 })
	for i, p := range d.ends[1:] {
		p.got = nil
		host.say(t, p.Local(), "%d", i)
	}
	d.tick()
	d.tick()
	for i, p := range d.ends[1:] {
		if len(p.got) != 1 || p.got[0] != fmt.Sprintf("datagram %d", i) || p.DirectStats().Received != 1 {
			t.Errorf("player %d got %q", i, p.got)
		}
	}
}

// TestDirectAllocs: a path in use allocates nothing, its challenges included.
func TestDirectAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	d, a, b := newDirectPair(t)
	d.connect(a, b)
	a.wire.sent, b.wire.sent = nil, nil
	text := []byte("a datagram")
	turn := func() {
		d.now = d.now.Add(tickLength)
		for _, e := range d.ends {
			e.Advance(d.now)
			for e.Receive(e.buf).Kind != link.Nothing {
			}
			_ = e.Send(d.ends[0].Local(), text)
			_ = e.Send(d.ends[1].Local(), text)
			e.Flush()
		}
		d.relay.Step()
		d.direct.Step()
	}
	for range 500 {
		turn()
	}
	if n := testing.AllocsPerRun(1000, turn); n != 0 {
		t.Errorf("%v allocations per tick", n)
	}
	if a.DirectStats().Sent < 1000 {
		t.Errorf("%+v", a.DirectStats())
	}
}
