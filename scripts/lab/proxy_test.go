package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// echo is a server that returns every datagram and records the source ports and
// the numbers in order of arrival.
type echo struct {
	conn     *net.UDPConn
	mu       sync.Mutex
	ports    map[uint16]bool
	received []uint32
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{conn: conn, ports: map[uint16]bool{}}
	var done sync.WaitGroup
	t.Cleanup(func() { conn.Close(); done.Wait() })
	done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			e.mu.Lock()
			e.ports[from.Port()] = true
			e.received = append(e.received, binary.BigEndian.Uint32(buf))
			e.mu.Unlock()
			conn.WriteToUDPAddrPort(buf[:n], from)
		}
	})
	return e
}

func (e *echo) got() []uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.received)
}

// sendThrough sends n numbered datagrams through a proxy, one at a time, and
// returns the proxy's counters once all have been delivered or dropped.
func sendThrough(t *testing.T, e *echo, cfg ProxyConfig, n int, between func(i int, p *Proxy)) ProxyStats {
	t.Helper()
	cfg.Target = e.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	p, err := NewProxy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	defer run.Wait()
	defer cancel()
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(p.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	var replies atomic.Uint64
	run.Go(func() { count(conn, &replies) })
	defer conn.Close()
	// The counts of the two ends are taken before those between them: what the
	// proxy sent after that can only make the sums differ.
	settled := func(sent int) bool {
		came, received := replies.Load(), uint64(len(e.got()))
		s := p.Stats()
		return s.Sent == s.Received-s.Lost+s.Duplicated && s.Received == uint64(sent)+received && s.Sent == received+came
	}
	for i := range n {
		between(i, p)
		conn.Write(binary.BigEndian.AppendUint32(nil, uint32(i)))
		// A few at a time, or socket buffers would overflow.
		if step := cfg.Up == (Faults{}); step || i%20 == 19 {
			testkit.Eventually(t, "everything arrives", func() bool { return settled(i + 1) })
		}
	}
	return p.Stats()
}

func count(conn *net.UDPConn, arrived *atomic.Uint64) {
	buf := make([]byte, 2048)
	for {
		if _, err := conn.Read(buf); errors.Is(err, net.ErrClosed) {
			return
		} else if err == nil {
			arrived.Add(1)
		}
	}
}

func noAction(int, *Proxy) {}

// TestProxyPerfect verifies that without faults all datagrams arrive in order
// from one port, and from another one after a remapping.
func TestProxyPerfect(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	once := func(i int, p *Proxy) {
		if i == 100 {
			p.Remap()
		}
	}
	for _, c := range []struct {
		name    string
		cfg     ProxyConfig
		between func(int, *Proxy)
		remaps  uint64
	}{
		{"on command", ProxyConfig{}, once, 1},
		{"by number", ProxyConfig{RemapEvery: 40}, noAction, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEcho(t)
			s := sendThrough(t, e, c.cfg, 200, c.between)
			// A free port may be given twice, so their number only bounds.
			if s.Received != 400 || s.Sent != 400 || s.Lost != 0 || s.Sessions != 1 || s.Remaps != c.remaps || len(e.ports) < 2 {
				t.Errorf("%+v, ports %v", s, e.ports)
			}
			for i, v := range e.got() {
				if v != uint32(i) {
					t.Fatalf("datagram %d came as number %d", v, i)
				}
			}
		})
	}
}

// TestProxyFaults verifies the frequency of each fault, and that equal seeds
// give equal faults.
func TestProxyFaults(t *testing.T) {
	cfg := ProxyConfig{Up: Faults{Loss: 0.2, Duplicate: 0.1, Reorder: 0.2, ReorderBy: 3 * time.Millisecond}, Seed: 7}
	var lost []uint64
	for range 2 {
		e := newEcho(t)
		s := sendThrough(t, e, cfg, 1000, noAction)
		received := e.got()
		if n := len(received); n < 780 || n > 980 {
			t.Errorf("%d of 1,000 arrived", n)
		}
		if s.Lost < 130 || s.Lost > 270 || s.Duplicated < 40 || s.Duplicated > 130 {
			t.Errorf("%+v", s)
		}
		swapped := 0
		for i := 1; i < len(received); i++ {
			if received[i] < received[i-1] {
				swapped++
			}
		}
		if swapped == 0 {
			t.Error("nothing was reordered")
		}
		lost = append(lost, s.Lost)
	}
	if lost[0] != lost[1] {
		t.Errorf("one seed, two fates: %v", lost)
	}
}

func TestProxyConfig(t *testing.T) {
	ok := netip.MustParseAddrPort("127.0.0.1:1")
	for _, cfg := range []ProxyConfig{{}, {Target: ok, RemapEvery: -1}} {
		if p, err := NewProxy(cfg); err == nil {
			p.listener.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}
