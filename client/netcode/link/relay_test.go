package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type game struct {
	relay    *enginetest.Relay
	reserved alloc.Reservation
	host     *end
}

func newGame(t testing.TB, players int) *game {
	t.Helper()
	g := &game{relay: enginetest.Start(t, engine.Config{})}
	g.reserved = g.relay.Host("host", players)
	g.host = g.open(t, g.reserved, nil)
	return g
}

func (g *game) ticket(res alloc.Reservation) client.Ticket {
	ticket := client.Ticket{Server: g.relay.Addr(), ID: res.ID, Key: res.Key, ConnectionData: res.ConnectionData[:]}
	if res.HostConnectionData != res.ConnectionData {
		ticket.HostConnectionData = res.HostConnectionData[:]
	}
	return ticket
}

// config has quick timers. conn may be nil.
func (g *game) config(res alloc.Reservation, conn *net.UDPConn) client.Config {
	cfg := client.Config{Ticket: g.ticket(res), PingPeriod: 100 * time.Millisecond, RetryPeriod: 200 * time.Millisecond}
	if conn != nil {
		cfg.Conn = conn
	}
	return cfg
}

func (g *game) open(t testing.TB, res alloc.Reservation, conn *net.UDPConn) *end {
	t.Helper()
	return g.openConfig(t, g.config(res, conn))
}

func (g *game) openConfig(t testing.TB, cfg client.Config) *end {
	t.Helper()
	l, host, err := link.OpenRelay(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := (address.Addr{}); g.host == nil && host != want || g.host != nil && host != g.host.Local() {
		t.Fatalf("host is %v", host)
	}
	return newEnd(t, l)
}

// player opens a joiner, which knows its host afterwards.
func (g *game) player(t testing.TB, name string, conn *net.UDPConn) *end {
	t.Helper()
	p := g.open(t, g.relay.Joiner(name, g.reserved.ID), conn)
	p.expect(t, link.Joined, g.host.Local(), "")
	return p
}

func (g *game) greet(t testing.TB, p *end) {
	t.Helper()
	p.say(t, g.host.Local(), "hello")
	g.host.expect(t, link.Joined, p.Local(), "")
	g.host.expect(t, link.Datagram, p.Local(), "hello")
}

func received(e *end) uint64 { return link.Session(e.Link).Stats().Received }

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestRelay(t *testing.T) {
	t.Parallel()
	g := newGame(t, 8)
	var players []*end
	for i := range 8 {
		p := g.player(t, fmt.Sprint("player", i), nil)
		g.greet(t, p)
		players = append(players, p)
	}
	for i, p := range players {
		g.host.say(t, p.Local(), "you are %d", i)
		p.expect(t, link.Datagram, g.host.Local(), fmt.Sprintf("you are %d", i))
	}
	p := players[3]
	if p.Overhead() != 38 || p.Local() == g.host.Local() || p.Stats().Received != 1 || p.Stats().Sent != 1 {
		t.Errorf("overhead %d, stats %+v", p.Overhead(), p.Stats())
	}
	p.say(t, g.host.Local(), "")
	g.host.expect(t, link.Datagram, p.Local(), "")
	g.host.quiet(t)
}

func TestRelayRefuses(t *testing.T) {
	t.Parallel()
	g := newGame(t, 1)
	p := g.player(t, "player", nil)
	g.greet(t, p)
	for _, c := range []struct {
		to   address.Addr
		size int
		want error
	}{
		{g.host.Local(), proto.DefaultMaxContent + 1, link.ErrTooLarge},
		{address.FromAllocation(proto.AllocationID{1}), 1, link.ErrAddr},
		{link.NodeAddr(1), 1, link.ErrAddr},
		{address.Addr{}, 1, link.ErrAddr},
	} {
		if err := p.Send(c.to, make([]byte, c.size)); err != c.want {
			t.Errorf("%d bytes to %v: %v, want %v", c.size, c.to, err, c.want)
		}
	}
	if err := g.host.Dial(); err != client.ErrRole {
		t.Errorf("a host that dials: %v", err)
	}
	cfg := g.config(g.relay.Joiner("third", g.reserved.ID), nil)
	if r, _, err := link.OpenRelay(within(t), cfg); err == nil {
		_ = r.Close()
		t.Error("a host for one has two")
	}
	p.buf = p.buf[:5]
	g.host.say(t, p.Local(), "larger")
	g.host.say(t, p.Local(), "small")
	if ev, text := p.next(t); text != "small" || p.Stats().Discarded != 1 {
		t.Errorf("%+v, stats %+v", ev, p.Stats())
	}
	if err := p.Close(); err != nil || p.Close() != nil {
		t.Errorf("close: %v", err)
	}
	if err := p.Send(g.host.Local(), nil); err != net.ErrClosed {
		t.Errorf("send after close: %v", err)
	}
	if err := p.Dial(); err != net.ErrClosed {
		t.Errorf("dial after close: %v", err)
	}
	p.quiet(t)
}

// TestRelayDeparture: what a player says before it leaves is read before the
// news that it left.
func TestRelayDeparture(t *testing.T) {
	t.Parallel()
	g := newGame(t, 4)
	for round := range 20 {
		p := g.player(t, fmt.Sprint("player", round), nil)
		g.greet(t, p)
		for range 10 {
			p.say(t, g.host.Local(), "bye")
		}
		p.Disconnect(g.host.Local())
		for range 10 {
			g.host.expect(t, link.Datagram, p.Local(), "bye")
		}
		g.host.expect(t, link.Left, p.Local(), "")
		if err := g.host.Send(p.Local(), []byte("too late")); err != link.ErrAddr {
			t.Errorf("send to a player that left: %v", err)
		}
		p.quiet(t)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRelayKickAndReturn: a player that was kicked gets the event, and may join
// again over the same link.
func TestRelayKickAndReturn(t *testing.T) {
	t.Parallel()
	g := newGame(t, 1)
	p := g.player(t, "player", nil)
	g.greet(t, p)
	for range 5 {
		came := received(g.host)
		p.say(t, g.host.Local(), "unread")
		// The relay would complain of what it sees after the kick.
		testkit.Eventually(t, "what is not read", func() bool { return received(g.host) > came })
		g.host.say(t, p.Local(), "out")
		g.host.Disconnect(p.Local())
		if err := g.host.Send(p.Local(), nil); err != link.ErrAddr {
			t.Errorf("send to a kicked player: %v", err)
		}
		p.expect(t, link.Datagram, g.host.Local(), "out")
		p.expect(t, link.Left, g.host.Local(), "")
		// A host repeats a DISCONNECT without an echo, which would end the next connection.
		testkit.Eventually(t, "the echo", func() bool { return link.Session(g.host.Link).Stats().Peers == 0 })
		if err := p.Dial(); err != nil {
			t.Fatal(err)
		}
		p.expect(t, link.Joined, g.host.Local(), "")
		p.say(t, g.host.Local(), "again")
		g.host.expect(t, link.Joined, p.Local(), "")
		g.host.expect(t, link.Datagram, p.Local(), "again")
	}
	if err := p.Dial(); err != nil {
		t.Fatal(err)
	}
	g.host.say(t, p.Local(), "still here")
	p.expect(t, link.Datagram, g.host.Local(), "still here") // and no Joined
}

// TestRelayReturnIsHeldBack: the news of a player that left and came again come
// in their order, behind what was said before.
func TestRelayReturnIsHeldBack(t *testing.T) {
	t.Parallel()
	g := newGame(t, 1)
	p := g.player(t, "player", nil)
	g.greet(t, p)
	p.say(t, g.host.Local(), "bye")
	p.Disconnect(g.host.Local())
	if err := p.Dial(); err != nil {
		t.Fatal(err)
	}
	p.expect(t, link.Joined, g.host.Local(), "")
	p.say(t, g.host.Local(), "me again")
	testkit.Eventually(t, "all that was said", func() bool { return received(g.host) == 3 })
	g.host.expect(t, link.Datagram, p.Local(), "bye")
	g.host.expect(t, link.Left, p.Local(), "")
	g.host.expect(t, link.Joined, p.Local(), "")
	g.host.expect(t, link.Datagram, p.Local(), "me again")
	g.host.quiet(t)
}

func TestRelayDialRefused(t *testing.T) {
	t.Parallel()
	g := newGame(t, 1)
	first := g.player(t, "first", nil)
	g.greet(t, first)
	first.Disconnect(g.host.Local())
	g.host.expect(t, link.Left, first.Local(), "")
	second := g.player(t, "second", nil)
	g.greet(t, second)
	if err := first.Dial(); err != nil {
		t.Fatal(err)
	}
	if ev := first.expect(t, link.Refused, address.Addr{}, ""); ev.Err == nil {
		t.Error("refused without a reason")
	}
}

func TestRelayHostCloses(t *testing.T) {
	t.Parallel()
	g := newGame(t, 3)
	var players []*end
	for i := range 3 {
		p := g.player(t, fmt.Sprint("player", i), nil)
		g.greet(t, p)
		players = append(players, p)
	}
	if err := g.host.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range players {
		p.expect(t, link.Left, g.host.Local(), "")
	}
}

// socket is a socket that the test and a link share, so that the test can do
// what the link would not.
func socket(t testing.TB) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// vanish ends the allocation without a message to the link.
func (g *game) vanish(t testing.TB, conn *net.UDPConn, e *end) {
	t.Helper()
	id, _ := e.Local().Allocation()
	if _, err := conn.WriteToUDPAddrPort(proto.Close{ID: id}.Append(nil), g.relay.Addr()); err != nil {
		t.Fatal(err)
	}
}

// TestRelayEnds: ERROR 4 ends the link that was closed, and ERROR 5 ends
// the other side, whichever sends first.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	g := newGame(t, 2)
	conn := socket(t)
	p := g.player(t, "player", conn)
	g.greet(t, p)
	g.vanish(t, conn, p)
	ev := p.expect(t, link.Ended, address.Addr{}, "")
	var ended client.EndedError
	if !errors.As(ev.Err, &ended) || ended.Code != proto.ErrorNotFound {
		t.Errorf("ended with %v, want ERROR 4", ev.Err)
	}
	if err := p.Send(g.host.Local(), nil); err != ev.Err {
		t.Errorf("send then: %v", err)
	}
	p.quiet(t)
	g.host.say(t, p.Local(), "are you there?")
	testkit.Eventually(t, "ERROR 5 at the host", func() bool { return g.host.Stats().Unreachable == 1 })
}

func TestRelayJoinerLearnsThatItsHostIsGone(t *testing.T) {
	t.Parallel()
	relay := enginetest.Start(t, engine.Config{})
	conn := socket(t)
	g := &game{relay: relay, reserved: relay.Host("host", 1)}
	g.host = g.open(t, g.reserved, conn)
	p := g.player(t, "player", nil)
	g.greet(t, p)
	g.vanish(t, conn, g.host)
	g.host.expect(t, link.Ended, address.Addr{}, "")
	p.say(t, g.host.Local(), "are you there?")
	ev := p.expect(t, link.Left, g.host.Local(), "")
	if want := (client.RefusedError{Code: proto.ErrorNotFound}); !errors.Is(ev.Err, client.ErrLinkLost) || !errors.Is(ev.Err, want) {
		t.Errorf("left with %v, want %v", ev.Err, want)
	}
	if err := p.Send(g.host.Local(), nil); err != link.ErrAddr {
		t.Errorf("send then: %v", err)
	}
	if err := p.Dial(); err != nil {
		t.Fatal(err)
	}
	if ev := p.expect(t, link.Refused, address.Addr{}, ""); !errors.Is(ev.Err, client.RefusedError{Code: proto.ErrorNotFound}) {
		t.Errorf("refused with %v", ev.Err)
	}
}

// TestRelayOpenFails: nothing remains of a link that could not be opened, which
// goleak looks at.
func TestRelayOpenFails(t *testing.T) {
	t.Parallel()
	silent := socket(t)
	defer silent.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	server := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(silent.LocalAddr().(*net.UDPAddr).Port))
	ticket := client.Ticket{Server: server, ID: proto.AllocationID{1}, ConnectionData: make([]byte, 255)}
	_, _, err := link.OpenRelay(ctx, client.Config{Ticket: ticket})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a relay that is silent: %v", err)
	}
	if _, _, err := link.OpenRelay(ctx, client.Config{}); !errors.Is(err, client.ErrConfig) {
		t.Errorf("no ticket: %v", err)
	}
}

// TestRelayQueueIsBounded: a host that does not receive loses the datagrams above
// the limit of one player, and still gets the event of another that joins.
func TestRelayQueueIsBounded(t *testing.T) {
	t.Parallel()
	g := newGame(t, 2)
	g.reserved = g.relay.Host("another host", 2)
	cfg := g.config(g.reserved, nil)
	cfg.ReceiveQueue = 30
	g.host = nil
	g.host = g.openConfig(t, cfg)
	loud, calm := g.player(t, "loud", nil), g.player(t, "calm", nil)
	const sent = 200
	for i := range sent {
		loud.say(t, g.host.Local(), "%d", i)
	}
	testkit.Eventually(t, "everything came or was dropped", func() bool {
		return received(g.host) == 30 && g.host.Stats().QueueFull == sent-30
	})
	calm.say(t, g.host.Local(), "me too")
	testkit.Eventually(t, "the other player", func() bool { return received(g.host) == 31 })
	g.host.expect(t, link.Joined, loud.Local(), "")
	g.host.expect(t, link.Datagram, loud.Local(), "0")
	g.host.expect(t, link.Joined, calm.Local(), "")
	g.host.expect(t, link.Datagram, loud.Local(), "1")
	g.host.expect(t, link.Datagram, calm.Local(), "me too")
	for i := 2; i < 30; i++ {
		g.host.expect(t, link.Datagram, loud.Local(), fmt.Sprint(i))
	}
	g.host.quiet(t)
}

func TestRelayAllocs(t *testing.T) {
	g := newGame(t, 1)
	p := g.player(t, "player", nil)
	g.greet(t, p)
	to, pkt := p.Local(), make([]byte, 1200)
	now := time.Now()
	noAllocs(t, func() {
		if err := g.host.Send(to, pkt); err != nil {
			t.Fatal(err)
		}
		g.host.Flush()
		g.host.Advance(now)
		p.Advance(now)
		arrives(t, p)
	})
}
