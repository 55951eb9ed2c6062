package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// listen serves the handler as ferry does and returns its base URL.
func listen(t *testing.T, x *fixture) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(x)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

func TestServerLimits(t *testing.T) {
	t.Parallel()
	s := NewServer(http.NotFoundHandler())
	got := []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("time-out %d is %v, want %v", i, got[i], want[i])
		}
	}
	if s.MaxHeaderBytes != 8<<10 {
		t.Errorf("MaxHeaderBytes = %d", s.MaxHeaderBytes)
	}
}

func TestServerRefusesLongHeaders(t *testing.T) {
	t.Parallel()
	base := listen(t, newFixture(t, Config{}))
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/v1/regions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 32<<10))
	// The server closes the connection half a second after its answer, while a slow
	// caller is still sending.
	var res *http.Response
	for range 10 {
		if res, err = http.DefaultClient.Do(req); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
}

// TestClientAgainstServer has the package's own client go through a match and
// its failures over a real connection.
func TestClientAgainstServer(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	base := listen(t, x)
	anna := &api.Client{BaseURL: base, Token: tokenAnna}
	bert := &api.Client{BaseURL: base, Token: tokenBert}
	unnamed := &api.Client{BaseURL: base}

	host, err := anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: "far"})
	if err != nil || host.Region != "far" || host.RelayServer != (api.RelayServer{IPv4: "192.0.2.9", Port: 7777}) {
		t.Fatalf("Allocate = %+v, %v", host, err)
	}
	code, err := anna.JoinCode(t.Context(), host.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := bert.Join(t.Context(), strings.ToLower(code))
	if err != nil || len(joiner.HostConnectionData) != 255 {
		t.Fatalf("Join = %+v, %v", joiner, err)
	}
	regions, err := bert.Regions(t.Context())
	if err != nil || len(regions) != 2 {
		t.Fatalf("Regions = %v, %v", regions, err)
	}

	_, err = bert.JoinCode(t.Context(), host.AllocationID)
	wantCode(t, err, api.CodeAllocationNotFound)
	_, err = unnamed.Regions(t.Context())
	wantCode(t, err, api.StatusCode(401))
	_, err = anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: strings.Repeat("x", maxBody)})
	wantCode(t, err, api.StatusCode(413))
	x.relay.failWith(alloc.ErrFull)
	_, err = anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if p := wantCode(t, err, api.CodeNoSuitableRelay); p.RetryAfter != retryFull {
		t.Errorf("RetryAfter = %v", p.RetryAfter)
	}
}

func wantCode(t *testing.T, err error, code int) *api.Problem {
	t.Helper()
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code != code {
		t.Fatalf("error = %v, want code %d", err, code)
	}
	return p
}

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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	q := new(queue)
	refused := make(map[Rejection]int)
	l := LimitListener(q, ConnLimits{OnReject: func(why Rejection) { refused[why]++ }})
	var fine int
	for i := range 20 * 300 {
		q.add(netip.AddrFrom4([4]byte{198, 51, 100, byte(i / 300)}).String())
		if _, err := l.Accept(); err == nil {
			fine++
		}
	}
	// 256 each of 16 addresses; the first 15 met the limit of theirs.
	if fine != 4096 || refused[RejectedTotal]+refused[RejectedAddress] != 20*300-4096 || refused[RejectedAddress] != 15*(300-256) {
		t.Errorf("%d connections let in, refused %v", fine, refused)
	}
}

// TestLimitListenerCloses: a refused connection is closed at once, over a real socket.
func TestLimitListenerCloses(t *testing.T) {
	t.Parallel()
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
