package client

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; none waits that long when all is well.
const patience = 20 * time.Second

var (
	hostID   = proto.AllocationID{0: 0x48, 15: 1}
	joinerID = proto.AllocationID{0: 0x4a, 15: 2}
	otherID  = proto.AllocationID{0: 0x4f, 15: 3}
)

// ticketFor returns a ticket whose secrets follow from the id.
func ticketFor(server netip.AddrPort, id proto.AllocationID) Ticket {
	t := Ticket{Server: server, ID: id, ConnectionData: make([]byte, proto.MaxConnectionData)}
	copy(t.ConnectionData, id[:])
	for i := range t.Key {
		t.Key[i] = id[0] ^ byte(i)
	}
	return t
}

func hostTicket(server netip.AddrPort) Ticket { return ticketFor(server, hostID) }

func joinerTicket(server netip.AddrPort, id proto.AllocationID) Ticket {
	t := ticketFor(server, id)
	t.HostConnectionData = hostTicket(server).ConnectionData
	return t
}

// nowhere is an address on which nothing answers.
var nowhere = netip.MustParseAddrPort("127.0.0.1:9")

// idle returns a session that is never run: the test is its clock.
func idle(t testing.TB, cfg Config) *Session {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(context.Canceled) })
	return s
}

// idleHost and idleJoiner are such sessions after their BIND was confirmed, and
// after their first PING.
func idleHost(t testing.TB, cfg Config) *Session {
	t.Helper()
	cfg.Ticket = hostTicket(nowhere)
	return bindIdle(t, idle(t, cfg))
}

func idleJoiner(t testing.TB, cfg Config) *Session {
	t.Helper()
	cfg.Ticket = joinerTicket(nowhere, joinerID)
	return bindIdle(t, idle(t, cfg))
}

func bindIdle(t testing.TB, s *Session) *Session {
	t.Helper()
	beginBind(s, 0)
	drain(t, s, 0)
	feed(s, 0, proto.BindReceived{})
	drain(t, s, 0)
	if !s.bind.bound.Load() {
		t.Fatal("not bound")
	}
	return s
}

// beginBind is what Bind does before it waits.
func beginBind(s *Session, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bind.begin(now, now)
}

func feed(s *Session, now int64, m proto.Message) { feedBytes(s, now, m.Append(nil)) }

func feedBytes(s *Session, now int64, pkt []byte) {
	d := new(datagram)
	d.n, d.at = copy(d.buf[:], pkt), s.transport.socket.Load()
	s.handle(now, d)
}

func drain(t testing.TB, s *Session, now int64) []proto.Message {
	t.Helper()
	var sent []proto.Message
	for {
		pkt, _ := s.due(now, nil)
		if len(pkt) == 0 {
			return sent
		}
		m, err := proto.Decode(pkt)
		if err != nil {
			t.Fatalf("session sends %x: %v", pkt, err)
		}
		sent = append(sent, m)
		if len(sent) > 100 {
			t.Fatal("session does not stop sending")
		}
	}
}

func nonces(ms []proto.Message) []uint16 {
	var out []uint16
	for _, m := range ms {
		if b, ok := m.(proto.Bind); ok {
			out = append(out, b.Nonce)
		}
	}
	return out
}

func ms(n int) int64 { return int64(n) * int64(time.Millisecond) }

func numbered(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// loopback returns where the fake relay sees the session.
func loopback(s *Session) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.LocalAddr().Port())
}
