package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
)

// queue is a listener with prepared connections.
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

// addrConn is a connection from an address.
type addrConn struct {
	net.Conn
	from   net.Addr
	closed int
}

func (c *addrConn) RemoteAddr() net.Addr { return c.from }
func (c *addrConn) Close() error         { c.closed++; return nil }

func (q *queue) add(addr string) *addrConn {
	c := &addrConn{from: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 4000))}
	q.conns = append(q.conns, c)
	return c
}

func TestLimitListener(t *testing.T) {
	q := new(queue)
	refused := make(map[Rejection]int)
	l := LimitListener(q, ConnLimits{
		Total: 6, PerAddress: 2, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		OnReject: func(why Rejection) { refused[why]++ },
	})
	steps := []struct {
		addr string
		want Rejection
	}{
		{"198.51.100.1", ""}, {"198.51.100.1", ""}, {"198.51.100.1", RejectedAddress},
		{"::ffff:198.51.100.1", RejectedAddress},
		{"2001:db8:0:1::1", ""}, {"2001:db8:0:ff::2", ""}, {"2001:db8:0:2::3", RejectedAddress},
		{"10.0.0.1", ""}, {"10.0.0.1", ""},
		{"10.0.0.1", RejectedTotal}, {"203.0.113.1", RejectedTotal},
	}
	var open []net.Conn
	for i, step := range steps {
		before := refused[step.want]
		raw := q.add(step.addr)
		conn, err := l.Accept()
		if step.want != "" {
			if !errors.Is(err, errEmpty) || raw.closed != 1 || refused[step.want] != before+1 {
				t.Errorf("step %d: error %v, closed %d times, refused %v", i, err, raw.closed, refused)
			}
			continue
		}
		if err != nil || raw.closed != 0 || conn.RemoteAddr() != raw.from {
			t.Fatalf("step %d: %v, closed %d times", i, err, raw.closed)
		}
		open = append(open, conn)
	}
	// Closed twice, and yet only one place is free again.
	_, _ = open[0].Close(), open[0].Close()
	q.add("203.0.113.1")
	if _, err := l.Accept(); err != nil {
		t.Errorf("into the free place: %v", err)
	}
	q.add("203.0.113.2")
	if _, err := l.Accept(); !errors.Is(err, errEmpty) {
		t.Errorf("one more: %v", err)
	}
}

// TestLimitListenerForgets: an address without connections takes no memory.
func TestLimitListenerForgets(t *testing.T) {
	q := new(queue)
	l := LimitListener(q, ConnLimits{}).(*limitListener)
	for i := range 1000 {
		q.add(fmt.Sprintf("2001:db8:%x::1", i))
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if len(l.open) != 1 || l.total != 1 {
			t.Fatalf("%d connections of %d addresses", l.total, len(l.open))
		}
		_ = conn.Close()
	}
	if len(l.open) != 0 || l.total != 0 {
		t.Errorf("%d connections of %d addresses are left", l.total, len(l.open))
	}
}

func TestLimitListenerDefaults(t *testing.T) {
	q := new(queue)
	refused := make(map[Rejection]int)
	l := LimitListener(q, ConnLimits{OnReject: func(why Rejection) { refused[why]++ }})
	var fine int
	for i := range 70 * 70 {
		q.add(netip.AddrFrom4([4]byte{198, 51, 100, byte(i / 70)}).String())
		if _, err := l.Accept(); err == nil {
			fine++
		}
	}
	// 64 each of 64 addresses; of those, the first 64 met the limit of theirs.
	if fine != 4096 || refused[RejectedTotal]+refused[RejectedAddress] != 70*70-4096 || refused[RejectedAddress] != 63*6 {
		t.Errorf("%d connections let in, refused %v", fine, refused)
	}
}

// TestLimitListenerCloses: a refused connection is closed at once, over a real socket.
func TestLimitListenerCloses(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitListener(inner, ConnLimits{PerAddress: -1})
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
