package connlimit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

type queue struct {
	conns []net.Conn
}

var errEmpty = errors.New("no connection left")

func (q *queue) Accept() (net.Conn, error) {
	if len(q.conns) == 0 {
		return nil, errEmpty
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	return c, nil
}

func (q *queue) Close() error   { return nil }
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

type addrConn struct {
	net.Conn
	from     net.Addr
	closed   int
	deadline time.Time
}

func (c *addrConn) RemoteAddr() net.Addr { return c.from }
func (c *addrConn) Close() error         { c.closed++; return nil }

func (c *addrConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (q *queue) add(addr string) *addrConn {
	c := &addrConn{from: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 4000))}
	q.conns = append(q.conns, c)
	return c
}

func TestListener(t *testing.T) {
	t.Parallel()
	q := new(queue)
	closed := make(map[Rejection]int)
	l := Listen(q, Limits{
		Total: 6, PerAddress: 2, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		OnReject: func(why Rejection) { closed[why]++ },
	})
	steps := []struct {
		addr   string
		want   Rejection
		victim int // the step of the connection that is closed; that of the last one is refused
	}{
		{"198.51.100.1", "", 0}, {"198.51.100.1", "", 0}, {"198.51.100.1", EvictedAddress, 0},
		{"::ffff:198.51.100.1", EvictedAddress, 1},
		{"2001:db8:0:1::1", "", 0}, {"2001:db8:0:ff::2", "", 0}, {"2001:db8:0:2::3", EvictedAddress, 4},
		{"10.0.0.1", "", 0}, {"10.0.0.1", "", 0},
		{"203.0.113.1", EvictedTotal, 2},
		{"10.0.0.1", EvictedTotal, 5}, {"10.0.0.1", EvictedTotal, 3}, {"10.0.0.1", EvictedTotal, 6},
		{"10.0.0.1", EvictedTotal, 9}, {"203.0.113.1", RejectedTotal, 14}, {"10.0.0.1", RejectedTotal, 15},
	}
	var raw []*addrConn
	var open []net.Conn
	for i, step := range steps {
		before := closed[step.want]
		raw = append(raw, q.add(step.addr))
		conn, err := l.Accept()
		if refused := step.want == RejectedTotal; errors.Is(err, errEmpty) != refused {
			t.Fatalf("step %d: %v", i, err)
		}
		if step.want != "" && (raw[step.victim].closed != 1 || closed[step.want] != before+1) {
			t.Errorf("step %d: connection %d was closed %d times; %v", i, step.victim, raw[step.victim].closed, closed)
		}
		if err == nil && (raw[i].closed != 0 || conn.RemoteAddr() != raw[i].from) {
			t.Fatalf("step %d: closed %d times", i, raw[i].closed)
		}
		open = append(open, conn)
	}
	// Closed twice, and yet only one place is free again; one that was evicted frees none.
	_, _, _ = open[7].Close(), open[7].Close(), open[0].Close()
	q.add("10.0.0.1")
	if _, err := l.Accept(); err != nil {
		t.Errorf("into the free place: %v", err)
	}
	q.add("10.0.0.1")
	if _, err := l.Accept(); !errors.Is(err, errEmpty) {
		t.Errorf("one more: %v", err)
	}
}

func TestListenerForgets(t *testing.T) {
	t.Parallel()
	q := new(queue)
	l := Listen(q, Limits{})
	for i := range 1000 {
		q.add(fmt.Sprintf("2001:db8:%x::1", i))
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		Protect(conn, fmt.Sprint(i), 1)
		if l.conns.total != 1 || l.conns.protected.Len() != 1 || len(l.conns.protectors) != 1 {
			t.Fatalf("%d connections, %d tokens", l.conns.total, len(l.conns.protectors))
		}
		_ = conn.Close()
	}
	if l.conns.total != 0 || l.conns.protected.Len() != 0 || l.conns.open.Len() != 0 || len(l.conns.protectors) != 0 {
		t.Errorf("%d connections and %d tokens are left", l.conns.total, len(l.conns.protectors))
	}
}

func TestListenerDefaults(t *testing.T) {
	t.Parallel()
	q := new(queue)
	closed := make(map[Rejection]int)
	l := Listen(q, Limits{OnReject: func(why Rejection) { closed[why]++ }})
	for i := range 20 * 300 {
		q.add(netip.AddrFrom4([4]byte{198, 51, 100, byte(i / 300)}).String())
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.conns.open.Len(); n != 4096 || l.conns.total != n || closed[EvictedTotal]+closed[EvictedAddress] != 20*300-4096 ||
		closed[EvictedAddress] < 15*(300-256) {
		t.Errorf("%d connections are open, closed %v", n, closed)
	}
}

// tableModel is the naive reference of connTable, for addresses of different networks: it
// looks at all connections.
type tableModel struct {
	limits Limits
	all    []*modelConn
}

type modelConn struct {
	conn     *limitedConn
	address  netip.Addr
	token    string
	progress int // the step
	called   int // the step of the last call with the token
}

func (m *tableModel) isProxy(c *modelConn) bool {
	return forwarded.Contains(m.limits.TrustedProxies, c.address)
}

func filter(all []*modelConn, keep func(*modelConn) bool) []*modelConn {
	return slices.DeleteFunc(slices.Clone(all), func(c *modelConn) bool { return !keep(c) })
}

// makeRoom returns the connection that ends for a new one, c itself if there is no other, and
// nil if c is within the limits.
func (m *tableModel) makeRoom(c *modelConn, full bool) (victim *modelConn, why Rejection) {
	limit, evicted := m.limits.PerAddress, EvictedAddress
	all := filter(m.all, func(o *modelConn) bool { return o != c && o.address == c.address })
	if m.isProxy(c) || len(all) < limit {
		if !full {
			return nil, ""
		}
		limit, evicted = m.limits.Total, EvictedTotal
		all = filter(m.all, func(o *modelConn) bool { return !m.isProxy(o) })
	}
	open := filter(all, func(o *modelConn) bool { return o.token == "" })
	protected := filter(all, func(o *modelConn) bool { return o.token != "" })
	if len(protected) > 0 && len(open) <= limit/newcomerShare {
		return largest(protected), EvictedProtected
	}
	if len(open) == 0 {
		return c, RejectedTotal
	}
	return largest(open), evicted
}

// largest returns the connection without progress for longest of the address with most.
func largest(all []*modelConn) (best *modelConn) {
	most := 0
	for _, c := range all {
		same := filter(all, func(o *modelConn) bool { return o.address == c.address })
		oldest := slices.MinFunc(same, func(a, b *modelConn) int { return a.progress - b.progress })
		if len(same) > most || len(same) == most && oldest.progress < best.progress {
			best, most = oldest, len(same)
		}
	}
	return best
}

func (m *tableModel) remove(c *modelConn) {
	m.all = filter(m.all, func(o *modelConn) bool { return o != c })
}

// protect is a call with a token, at a step.
func (m *tableModel) protect(c *modelConn, token string, most, step int) {
	c.token, c.progress, c.called = token, step, step
	same := filter(m.all, func(o *modelConn) bool { return o.token == token })
	if len(same) <= most {
		return
	}
	oldest := slices.MinFunc(same, func(a, b *modelConn) int { return a.called - b.called })
	oldest.token, oldest.progress = "", step+1
}

// TestConnTable compares random sequences with the model, with a step as the unit of time.
func TestConnTable(t *testing.T) {
	t.Parallel()
	const most = 3 // connections that a token protects
	proxy := netip.MustParseAddr("10.0.0.1")
	seen := make(map[Rejection]int)
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := &tableModel{limits: Limits{
			Total: 4 + rnd.IntN(40), PerAddress: 1 + rnd.IntN(20), TrustedProxies: []netip.Prefix{netip.PrefixFrom(proxy, 32)},
		}}
		table := &connTable{limits: m.limits, protectors: make(map[string][]*limitedConn)}
		address := func() netip.Addr {
			if rnd.IntN(8) == 0 {
				return proxy
			}
			return netip.AddrFrom4([4]byte{20, byte(rnd.IntN(1 + rnd.IntN(8))), 0, 1})
		}
		check := func(step int, got *limitedConn, why Rejection, want *modelConn, wantWhy Rejection) {
			t.Helper()
			seen[why]++
			if why != wantWhy || (got == nil) != (want == nil) || got != nil && got != want.conn {
				t.Fatalf("seed %d, step %d: %p %q, want %+v %q", seed, step, got, why, want, wantWhy)
			}
		}
		for step := 0; step < 600; step += 2 {
			var c *modelConn
			if len(m.all) > 0 {
				c = m.all[rnd.IntN(len(m.all))]
			}
			switch kind := rnd.IntN(10); {
			case c == nil || kind < 4:
				c = &modelConn{conn: &limitedConn{table: table}, address: address(), progress: step}
				want, wantWhy := m.makeRoom(c, len(m.all) >= m.limits.Total)
				got, why := table.add(c.conn, c.address)
				check(step, got, why, want, wantWhy)
				if want != c {
					m.remove(want)
					m.all = append(m.all, c)
				}
			case kind < 6:
				if !m.isProxy(c) {
					m.protect(c, fmt.Sprint(rnd.IntN(4)), most, step)
				}
				table.protect(c.conn, cmp.Or(c.token, "0"), most)
			case kind < 8:
				c.progress = step
				table.noteProgress(c.conn)
			case kind < 9 && m.isProxy(c):
				client := address()
				if client == proxy {
					continue
				}
				c.address, c.progress = client, step
				want, wantWhy := m.makeRoom(c, false)
				got, why := table.setClient(c.conn, client)
				check(step, got, why, want, wantWhy)
				m.remove(want)
			default:
				m.remove(c)
				table.release(c.conn)
			}
			if table.total != len(m.all) {
				t.Fatalf("seed %d, step %d: %d connections, want %d", seed, step, table.total, len(m.all))
			}
			for _, c := range m.all {
				if c.conn.protector != c.token || c.conn.gone.Load() {
					t.Fatalf("seed %d, step %d: protected by %q, want %q", seed, step, c.conn.protector, c.token)
				}
			}
		}
	}
	for _, why := range []Rejection{RejectedTotal, EvictedTotal, EvictedAddress, EvictedProtected} {
		if seen[why] == 0 {
			t.Errorf("no connection was closed for %s", why)
		}
	}
}

func TestListenerCloses(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(inner, Limits{Total: -1})
	done := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err == nil { // else it was reset before Dial knew that it was there
		if n, err := io.Copy(io.Discard, conn); n != 0 {
			t.Errorf("%d bytes, %v", n, err)
		}
		_ = conn.Close()
	}
	_ = l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
}

// TestIdleTimeout: reads of connections of trusted proxies alone may take longer.
func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	q := new(queue)
	l := Listen(q, Limits{IdleTimeout: time.Minute, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, tt := range []struct {
		addr        string
		after, want time.Duration
	}{
		{"10.0.0.1", 10 * time.Minute, 10 * time.Minute}, {"192.0.2.1", 10 * time.Minute, time.Minute}, {"192.0.2.1", time.Second, time.Second},
	} {
		raw := q.add(tt.addr)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_ = conn.SetReadDeadline(start.Add(tt.after))
		if got := raw.deadline.Sub(start); got < tt.want || got > tt.want+10*time.Second {
			t.Errorf("%s: %v, want %v", tt.addr, got, tt.want)
		}
		if _ = conn.SetReadDeadline(time.Time{}); !raw.deadline.IsZero() {
			t.Errorf("%s: no deadline became %v", tt.addr, raw.deadline)
		}
		SetClient(conn, netip.MustParseAddr("192.0.2.2"))
		if _ = conn.SetReadDeadline(start.Add(time.Hour)); raw.deadline.Sub(start) > 2*time.Minute {
			t.Errorf("%s: a client's connection may be idle for %v", tt.addr, raw.deadline.Sub(start))
		}
	}
}
