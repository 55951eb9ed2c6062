package client

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// everyMessage is one of each type, to the host's session where it names one.
var everyMessage = []proto.Message{
	proto.Bind{Nonce: 1, ConnectionData: []byte("data")},
	proto.BindReceived{},
	proto.Ping{ID: hostID, Number: 1},
	proto.ConnectRequest{ID: hostID, ConnectionData: []byte("data")},
	proto.Accepted{From: joinerID, To: hostID},
	proto.Rejected{From: joinerID, To: hostID},
	proto.Disconnect{From: joinerID, To: hostID},
	proto.Disconnect{From: hostID, To: joinerID},
	proto.Relay{From: joinerID, To: hostID, Payload: []byte("content")},
	proto.Close{ID: hostID},
	proto.Error{ID: hostID, Code: proto.ErrorMismatch},
	proto.Error{ID: hostID, Code: proto.ErrorTimeout},
	proto.Error{ID: hostID, Code: 99},
}

func FuzzHandle(f *testing.F) {
	for _, m := range everyMessage {
		pkt := m.Append(nil)
		f.Add(pkt, false)
		f.Add(pkt[:len(pkt)-1], true)
	}
	f.Fuzz(func(t *testing.T, pkt []byte, joins bool) {
		s := idleHost(t, Config{ReceiveQueue: 2, MaxPeers: 2})
		if joins {
			s = idleJoiner(t, Config{ReceiveQueue: 2})
			if _, _, err := s.connect.begin(); err != nil {
				t.Fatal(err)
			}
		}
		defer s.end(net.ErrClosed)
		for i := range 4 {
			now := ms(1000 * i)
			feedBytes(s, now, pkt)
			drain(t, s, now)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.peers.byID) > 2 || s.peers.leaving != 0 {
			t.Errorf("%d peers, %d leaving", len(s.peers.byID), s.peers.leaving)
		}
	})
}

// brokenConn is a socket that the system has taken away, as from an app in the background.
type brokenConn struct{ reads atomic.Int64 }

var errBroken = errors.New("socket is not connected")

func (c *brokenConn) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) {
	c.reads.Add(1)
	return 0, netip.AddrPort{}, errBroken
}
func (*brokenConn) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) { return len(b), nil }
func (*brokenConn) LocalAddr() net.Addr                                        { return &net.UDPAddr{} }
func (*brokenConn) Close() error                                               { return nil }

// TestBrokenSocket: a session whose socket fails at once each time reads it rarely, and ends with that reason, also
// if nothing waits for a BIND.
func TestBrokenSocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		binds bool
		want  string
		after time.Duration
	}{
		{"bind", true, "client: relay does not answer BIND, and the socket receives errors: socket is not connected", 10 * time.Second},
		{"no bind", false, "client: the socket has received nothing but errors for 1m0s: socket is not connected", time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := new(brokenConn)
			s := idle(t, Config{Ticket: hostTicket(nowhere), Conn: conn})
			began, ended := time.Now(), make(chan error, 1)
			go func() { ended <- s.Run(t.Context()) }()
			if c.binds {
				go func() { _ = s.Bind(t.Context()) }()
			}
			err := <-ended
			if err == nil || err.Error() != c.want || !errors.Is(err, errBroken) {
				t.Errorf("%s: %v", c.name, err)
			}
			took := time.Since(began)
			if most := int64(took/maxReadPause) + 10; took < c.after || took > c.after+2*time.Second || conn.reads.Load() > most {
				t.Errorf("%s: ended after %v and %d reads", c.name, took, conn.reads.Load())
			}
		})
	}
}

// longConn is a socket of Windows to which somebody sends one long datagram after another, and the relay one PING between.
type longConn struct {
	brokenConn
	relay netip.AddrPort
}

func (c *longConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	if c.reads.Add(1)%100 == 0 {
		return copy(b, proto.Ping{ID: hostID}.Append(nil)), c.relay, nil
	}
	time.Sleep(time.Millisecond)
	return 0, netip.AddrPort{}, &net.OpError{Op: "read", Net: "udp4", Err: os.NewSyscallError("wsarecvfrom", syscall.Errno(10040))}
}

// TestLongDatagrams: datagrams that Windows reports as errors do not make the session pause, and hide no trouble of the socket.
func TestLongDatagrams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &longConn{relay: nowhere}
		s := idle(t, Config{Ticket: hostTicket(nowhere), Conn: conn})
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context()) }()
		time.Sleep(10 * time.Second)
		if reads, st := conn.reads.Load(), s.Stats(); reads < 9900 || st.Malformed < 9800 || s.transport.failing.Load() != nil {
			t.Errorf("%d reads in 10 s, %+v", reads, st)
		}
		s.Close()
		<-ended
	})
}

// TestLoopback: a session with a relay of this machine listens there only, so that no firewall asks about it.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"127.0.0.1:7777", "127.0.0.2:7777", "[::1]:7777"} {
		conn, err := Config{}.listen(netip.MustParseAddrPort(server))
		if err != nil {
			if strings.HasPrefix(server, "[") {
				continue // This machine has no IPv6.
			}
			t.Fatal(err)
		}
		defer conn.Close()
		if addr := conn.LocalAddr().(*net.UDPAddr); !addr.IP.IsLoopback() {
			t.Errorf("to %s: it listens at %v", server, addr)
		}
	}
}

func TestWhatARelayDoesNotSend(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	cut := proto.Relay{From: joinerID, To: hostID, Payload: []byte("content")}.Append(nil)
	for _, c := range []struct {
		name  string
		pkt   []byte
		count func(Stats) uint64
	}{
		{"empty", nil, func(s Stats) uint64 { return s.Malformed }},
		{"cut RELAY", cut[:len(cut)-1], func(s Stats) uint64 { return s.Malformed }},
		{"long PING", append(proto.Ping{ID: hostID}.Append(nil), 0), func(s Stats) uint64 { return s.Malformed }},
		{"RELAY to another", proto.Relay{From: joinerID, To: otherID}.Append(nil), func(s Stats) uint64 { return s.Unexpected }},
		{"PING of another", proto.Ping{ID: otherID}.Append(nil), func(s Stats) uint64 { return s.Unexpected }},
		{"ACCEPTED to a host", proto.Accepted{From: joinerID, To: hostID}.Append(nil), func(s Stats) uint64 { return s.Unexpected }},
		{"DISCONNECT of an unknown id", proto.Disconnect{From: joinerID, To: hostID}.Append(nil), func(s Stats) uint64 { return s.Unexpected }},
		{"BIND", everyMessage[0].Append(nil), func(s Stats) uint64 { return s.Unexpected }},
		{"type 7", []byte{0xDA, 0x72, 0, 7}, func(s Stats) uint64 { return s.Unexpected }},
		{"unknown ERROR", proto.Error{ID: hostID, Code: 200}.Append(nil), func(s Stats) uint64 { return s.OtherErrors }},
		{"ERROR 0", proto.Error{}.Append(nil), func(s Stats) uint64 { return s.Errors[proto.ErrorVersion] }},
		{"ERROR 5", proto.Error{ID: hostID, Code: proto.ErrorNotConnected}.Append(nil),
			func(s Stats) uint64 { return s.Errors[proto.ErrorNotConnected] }},
	} {
		before := c.count(s.Stats())
		feedBytes(s, ms(10), c.pkt)
		after := s.Stats()
		if c.count(after) != before+1 || after.Peers != 0 || s.Err() != nil {
			t.Errorf("%s: %+v, %v", c.name, after, s.Err())
		}
	}
}

func TestOversizeDatagram(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	pkt := proto.Relay{From: joinerID, To: hostID, Payload: make([]byte, proto.MaxContent)}.Append(nil)
	feedBytes(s, 0, append(pkt, 0))
	if st := s.Stats(); st.Malformed != 1 {
		t.Errorf("stats are %+v", st)
	}
	feedBytes(s, 0, pkt)
	if st := s.Stats(); st.Received != 1 {
		t.Errorf("stats are %+v", st)
	}
}

// TestOtherSourcesAreIgnored is a correct datagram from the wrong address.
func TestOtherSourcesAreIgnored(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	s := running(t, brisk(hostTicket(f.addr)))
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	foreign, err := net.Dial("udp4", loopback(s).String())
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for _, m := range everyMessage {
		if _, err := foreign.Write(m.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "all counted", func() bool { return s.Stats().Foreign == uint64(len(everyMessage)) })
	if st := s.Stats(); st.Peers != 0 || s.Err() != nil {
		t.Errorf("stats are %+v, ended with %v", st, s.Err())
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := idleHost(t, Config{})
	d := new(datagram)
	pkt := proto.Relay{From: joinerID, To: hostID, Payload: make([]byte, 1200)}.Append(nil)
	receive := func() {
		d.n = copy(d.buf[:], pkt)
		d = s.handle(0, d)
	}
	receive()
	p, err := s.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	receive()
	buf, control, packets := make([]byte, 1500), make([]byte, 0, 295), s.PacketConn()
	to, now := p.RemoteAddr(), int64(0)
	for name, do := range map[string]func() error{
		"Read": func() error { receive(); _, err := p.Read(buf); return err },
		"Read with deadline": func() error {
			receive()
			_ = p.SetReadDeadline(time.Now().Add(time.Hour))
			_, err := p.Read(buf)
			return err
		},
		"ReadFrom": func() error { receive(); _, _, err := packets.ReadFrom(buf); return err },
		"Write":    func() error { _, err := p.Write(buf[:1200]); return err },
		"WriteTo":  func() error { _, err := packets.WriteTo(buf[:1200], to); return err },
		"PING": func() error {
			now += ms(1000)
			ping, _ := s.due(now, control)
			d.n = copy(d.buf[:], ping)
			d = s.handle(now, d)
			return nil
		},
	} {
		if n := testing.AllocsPerRun(200, func() {
			if err := do(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// TestTheWholePathDoesNotAllocate counts the reader's goroutine too.
func TestTheWholePathDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	relay, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	cfg := Config{Ticket: hostTicket(relay.LocalAddr().(*net.UDPAddr).AddrPort()), PingPeriod: time.Hour}
	s := running(t, cfg)
	s.mu.Lock()
	s.bind.bound.Store(true)
	s.mu.Unlock()
	pkt := proto.Relay{From: joinerID, To: hostID, Payload: make([]byte, 1200)}.Append(nil)
	to, buf := loopback(s), make([]byte, 1500)
	if _, err := relay.WriteToUDPAddrPort(pkt, to); err != nil {
		t.Fatal(err)
	}
	p, err := s.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(500, func() {
		if _, err := relay.WriteToUDPAddrPort(pkt, to); err != nil {
			t.Fatal(err)
		}
		n, err := p.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Write(buf[:n]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a datagram in and out allocates %v times", n)
	}
}
