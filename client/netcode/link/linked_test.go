package link_test

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// linkedPair returns two nodes of a network that plays a relay, joined.
func linkedPair(t testing.TB) (w *link.Network, host, player *end) {
	t.Helper()
	w, host, player = pair(t, &link.Network{Linked: true})
	join(t, w, host, player)
	return w, host, player
}

func join(t testing.TB, w *link.Network, host, player *end) {
	t.Helper()
	if err := w.Link(host.Local(), player.Local()); err != nil {
		t.Fatal(err)
	}
	w.Step()
	host.expect(t, link.Joined, player.Local(), "")
	player.expect(t, link.Joined, host.Local(), "")
}

func TestLinkedPasses(t *testing.T) {
	t.Parallel()
	w, host, player := linkedPair(t)
	player.say(t, host.Local(), "hello")
	if err := w.Link(player.Local(), host.Local()); err != nil {
		t.Fatal(err)
	}
	w.Step()
	host.expect(t, link.Datagram, player.Local(), "hello")
	host.quiet(t) // A link that is there is not made again.
	unknown := open(t, w, address.Addr{})
	unknown.say(t, host.Local(), "psst")
	w.Step()
	host.quiet(t)
	if got := unknown.Stats().Unreachable; got != 1 {
		t.Errorf("%d unreachable", got)
	}
	if err := w.Link(host.Local(), link.NodeAddr(99)); err != link.ErrAddr {
		t.Errorf("a link to an unknown node: %v", err)
	}
	if err := new(link.Network).Link(host.Local(), player.Local()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a link on a network that plays UDP: %v", err)
	}
}

// TestLinkedDisconnect: what was sent before a disconnect comes before Left, and nothing after it.
func TestLinkedDisconnect(t *testing.T) {
	t.Parallel()
	w, host, player := linkedPair(t)
	player.say(t, host.Local(), "bye")
	player.Disconnect(host.Local())
	host.say(t, player.Local(), "too late")
	w.Step()
	host.expect(t, link.Datagram, player.Local(), "bye")
	host.expect(t, link.Left, player.Local(), "")
	host.quiet(t)
	player.quiet(t)
	host.say(t, player.Local(), "hello?")
	w.Step()
	player.quiet(t)
	if got := host.Stats().Unreachable; got != 1 {
		t.Errorf("%d unreachable", got)
	}
}

// TestLinkedDisconnectIsSilent: after Disconnect nothing more of the peer is received.
func TestLinkedDisconnectIsSilent(t *testing.T) {
	t.Parallel()
	w, host, player := linkedPair(t)
	player.say(t, host.Local(), "waits to be read")
	w.Step()
	host.Disconnect(player.Local())
	host.Disconnect(player.Local())
	host.quiet(t)
	w.Step()
	player.expect(t, link.Left, host.Local(), "")
	player.quiet(t)
}

// TestLinkedAgain: a link that ends and begins again in one step gives both events.
func TestLinkedAgain(t *testing.T) {
	t.Parallel()
	w, host, player := linkedPair(t)
	player.say(t, host.Local(), "old")
	player.Disconnect(host.Local())
	if err := w.Link(host.Local(), player.Local()); err != nil {
		t.Fatal(err)
	}
	w.Step()
	host.expect(t, link.Datagram, player.Local(), "old")
	host.expect(t, link.Left, player.Local(), "")
	host.expect(t, link.Joined, player.Local(), "")
	player.expect(t, link.Joined, host.Local(), "")
	player.say(t, host.Local(), "new")
	w.Step()
	host.expect(t, link.Datagram, player.Local(), "new")
}

func TestLinkedClose(t *testing.T) {
	t.Parallel()
	w := &link.Network{Linked: true}
	host := open(t, w, address.Addr{})
	var players []*end
	for range 5 {
		p := open(t, w, address.Addr{})
		join(t, w, host, p)
		players = append(players, p)
	}
	if err := players[2].Close(); err != nil {
		t.Fatal(err)
	}
	w.Step()
	host.expect(t, link.Left, players[2].Local(), "")
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.Step(); got != 4 {
		t.Errorf("%d events, want one for each of 4 players", got)
	}
	for i, p := range players {
		if i != 2 {
			p.expect(t, link.Left, host.Local(), "")
		}
	}
	if err := w.Move(players[0].Local(), link.NodeAddr(50)); err != errors.ErrUnsupported {
		t.Errorf("move on a linked network: %v", err)
	}
}
