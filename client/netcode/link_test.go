package netcode_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// scripted is a link that says what a test wants, once.
type scripted struct {
	link.Link
	next link.Event
}

func (s *scripted) Receive(b []byte) link.Event {
	if ev := s.next; ev.Kind != link.Nothing {
		s.next = link.Event{}
		return ev
	}
	return s.Link.Receive(b)
}

func scriptedPair(t *testing.T) (*testNetwork, *scripted, netcode.Conn) {
	t.Helper()
	b := newTestNetwork(t, netcode.Config{})
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	l := &scripted{Link: node}
	d := b.driver(netcode.NewClient, netcode.Config{Link: l, Rand: newChance(1)})
	b.clients = append(b.clients, d)
	c := b.connect(d)
	b.tick(5)
	if c.State() != netcode.StateConnected {
		t.Fatal(c.State())
	}
	return b, l, c
}

func TestLinkEnds(t *testing.T) {
	b, l, _ := scriptedPair(t)
	d := b.clients[0]
	why := errors.New("the relay has ended")
	l.next = link.Event{Kind: link.Ended, Err: why}
	for range 2 {
		if err := d.Update(b.now); err != why {
			t.Errorf("update: %v", err)
		}
		if ev := d.Events(); len(ev) == 1 {
			if ev[0].Reason != netcode.ReasonProtocolError || ev[0].Cause != why {
				t.Errorf("%+v", ev[0])
			}
			why = ev[0].Cause
		}
		d.Flush()
	}
	if _, err := d.Connect(b.node.Local()); err != why {
		t.Errorf("connect: %v", err)
	}
}

func TestLinkRefuses(t *testing.T) {
	b, l, c := scriptedPair(t)
	l.next = link.Event{Kind: link.Refused, Err: errors.New("host is full")}
	b.tick(1)
	if c.State() != netcode.StateDisconnected {
		t.Errorf("the client is %v", c.State())
	}
}

func TestRoaming(t *testing.T) {
	rpc := newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg}
	b, s, c := pair(t, cfg, cfg)
	if err := b.net.Move(b.nodes[0].Local(), link.NodeAddr(77)); err != nil {
		t.Fatal(err)
	}
	if err := c.SendRPC(rpc.say.New([]byte("from afar"))); err != nil {
		t.Fatal(err)
	}
	b.flush()
	b.update()
	if at, ok := s.Remote(); at != link.NodeAddr(77) || !ok || len(read(s, rpc.say)) != 1 {
		t.Errorf("the client is at %v", at)
	}
}

func TestCloseTextIsCut(t *testing.T) {
	b, s, _ := pair(t, netcode.Config{}, netcode.Config{})
	s.Disconnect(netcode.ReasonConnectionClose, "x"+strings.Repeat("ü", 100))
	b.tick(1)
	b.update()
	ev := b.clients[0].Events()
	if len(ev) != 1 {
		t.Fatalf("%v", ev)
	}
	if text := ev[0].PeerText; len(text) != 127 || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// TestListenAgain: a server whose port was taken listens when it is free.
func TestListenAgain(t *testing.T) {
	taken, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Local()
	b := &testNetwork{t: t}
	d := b.driver(netcode.NewServer, netcode.Config{})
	if err := d.Listen(at); err == nil || d.Listening() {
		t.Error("a port was taken twice")
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Listen(at); err != nil || !d.Listening() {
		t.Errorf("when the port is free: %v", err)
	}
}

// TestZeroConn: the zero Conn behaves like one that has ended.
func TestZeroConn(t *testing.T) {
	var c netcode.Conn
	c.Disconnect(netcode.ReasonConnectionClose, "")
	c.SetInGame(true)
	c.SetUserData(1)
	_, stats := c.Stats()
	_, remote := c.Remote()
	if c != (netcode.Conn{}) || c.State() != netcode.StateUnknown || c.NetworkID() != 0 || stats || remote || c.UserData() != nil {
		t.Error("the zero Conn is a connection")
	}
	if c.Approve() != netcode.ErrGone || c.SendRPC(netcode.RPC{}) != netcode.ErrGone || c.Acks() != (netcode.Acks{}) {
		t.Error("the zero Conn does something")
	}
}
