package client

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestPacketConnServesPeersInTurn(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	c := s.PacketConn()
	for i := range uint32(3) {
		feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: numbered(i)})
	}
	feed(s, 0, proto.Relay{From: otherID, To: hostID, Payload: numbered(9)})
	buf := make([]byte, 10)
	for _, want := range []struct {
		from proto.AllocationID
		n    uint32
	}{{joinerID, 0}, {otherID, 9}, {joinerID, 1}, {joinerID, 2}} {
		n, from, err := c.ReadFrom(buf)
		if err != nil || from != net.Addr(Addr{want.from}) || string(buf[:n]) != string(numbered(want.n)) {
			t.Errorf("ReadFrom: %x from %v, %v; want %d from %v", buf[:n], from, err, want.n, want.from)
		}
	}
	_ = c.SetReadDeadline(time.Now())
	if _, _, err := c.ReadFrom(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ReadFrom with nothing left: %v", err)
	}
}

func TestPacketConnReadsTheDeparture(t *testing.T) {
	t.Parallel()
	for _, packeted := range []bool{true, false} {
		s := idleHost(t, Config{})
		if packeted {
			s.PacketConn()
		}
		feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: []byte("bye")})
		feed(s, 0, proto.Disconnect{From: joinerID, To: hostID})
		s.mu.Lock()
		waits := s.peers.ready.first != nil
		s.mu.Unlock()
		if waits != packeted {
			t.Errorf("PacketConn in use %v, but a datagram waits for it %v", packeted, waits)
		}
	}
}

func TestPacketConnForgetsAClosedPeer(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	c := s.PacketConn()
	for _, id := range []proto.AllocationID{joinerID, otherID, {0: 9}} {
		feed(s, 0, proto.Relay{From: id, To: hostID, Payload: id[:]})
	}
	p, _ := s.Peer(otherID)
	_ = p.Close()
	for _, want := range []proto.AllocationID{joinerID, {0: 9}} {
		_, from, err := c.ReadFrom(make([]byte, 20))
		if err != nil || from != net.Addr(Addr{want}) {
			t.Errorf("ReadFrom: %v, %v; want %v", from, err, want)
		}
	}
}

func TestPacketConnOverTheRelay(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	host, joiner, toHost := pair(t, f)
	hc, jc := host.PacketConn(), joiner.PacketConn()
	if hc.LocalAddr() != net.Addr(Addr{hostID}) || hc.LocalAddr().Network() != "ferry" || hc.LocalAddr().String() != hostID.String() {
		t.Errorf("local address is %v", hc.LocalAddr())
	}
	if _, err := jc.WriteTo([]byte("ping"), toHost.RemoteAddr()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	_ = hc.SetDeadline(time.Now().Add(patience))
	n, from, err := hc.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "ping" || from != net.Addr(Addr{joinerID}) {
		t.Fatalf("host reads %q from %v, %v", buf[:n], from, err)
	}
	if _, err := hc.WriteTo([]byte("pong"), from); err != nil {
		t.Fatal(err)
	}
	_ = jc.SetReadDeadline(time.Now().Add(patience))
	if n, _, err := jc.ReadFrom(buf); err != nil || string(buf[:n]) != "pong" {
		t.Errorf("joiner reads %q, %v", buf[:n], err)
	}
	if _, err := hc.WriteTo(nil, &net.UDPAddr{}); err != errAddr {
		t.Errorf("WriteTo a UDP address: %v", err)
	}
	if _, err := hc.WriteTo(make([]byte, 1401), from); err != ErrTooLarge {
		t.Errorf("WriteTo of 1401 bytes: %v", err)
	}
	_ = hc.SetWriteDeadline(time.Now().Add(-1))
	if _, err := hc.WriteTo(nil, from); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("WriteTo after the deadline: %v", err)
	}
	if err := hc.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := hc.ReadFrom(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom after Close: %v", err)
	}
}

// TestErrorNotConnected sends a datagram to an id without a link.
func TestErrorNotConnected(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	s := running(t, brisk(hostTicket(f.addr)))
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PacketConn().WriteTo([]byte("x"), Addr{joinerID}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "ERROR 5", func() bool { return s.Stats().Errors[proto.ErrorNotConnected] == 1 })
	if err := s.Err(); err != nil {
		t.Errorf("session has ended: %v", err)
	}
}

// TestOneReaderWakesTheNext is two datagrams with one token: the reader of
// the first must leave a token for the reader of the second.
func TestOneReaderWakesTheNext(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	for i := range uint32(3) {
		feed(s, 0, proto.Relay{From: joinerID, To: hostID, Payload: numbered(i)})
	}
	p, _ := s.Peer(joinerID)
	<-p.readable
	<-s.packets.readable
	buf := make([]byte, 10)
	if _, err := p.Read(buf); err != nil || len(p.readable) != 1 {
		t.Errorf("Read leaves %d tokens, %v", len(p.readable), err)
	}
	if _, _, err := s.PacketConn().ReadFrom(buf); err != nil || len(s.packets.readable) != 1 {
		t.Errorf("ReadFrom leaves %d tokens, %v", len(s.packets.readable), err)
	}
}
