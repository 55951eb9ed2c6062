package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

type player struct {
	*wiretest.Conn
	t    *testing.T
	id   proto.AllocationID
	cred enginetest.Credentials
}

// dialler knows how programs that are not ours reach an app.
type dialler struct {
	running
	pool   *x509.CertPool // nil: plain HTTP
	header http.Header
}

func (d dialler) join(t *testing.T, a api.Allocation, kind string) *player {
	t.Helper()
	p := &player{t: t, id: proto.AllocationID(a.AllocationIDBytes)}
	p.cred = enginetest.Credentials{
		ID: p.id, Key: a.Key, ConnectionData: a.ConnectionData, HostConnectionData: a.HostConnectionData,
	}
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == kind {
			p.dial(d, e)
			p.Bind(p.cred, 0)
			return p
		}
	}
	t.Fatalf("no %s in %+v", kind, a.ServerEndpoints)
	return nil
}

func (p *player) dial(d dialler, e api.ServerEndpoint) {
	p.t.Helper()
	to := net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
	if e.Secure != (e.ConnectionType == "dtls" || e.ConnectionType == "wss") || e.Reliable != (e.Network == "tcp") {
		p.t.Errorf("endpoint %+v", e)
	}
	switch e.ConnectionType {
	case "udp":
		conn, err := net.Dial("udp", to)
		if err != nil {
			p.t.Fatal(err)
		}
		p.Conn = wiretest.Datagrams(p.t, conn)
	case "dtls":
		socket, err := net.ListenPacket("udp", net.JoinHostPort(e.Host, "0"))
		if err != nil {
			p.t.Fatal(err)
		}
		p.Conn = wiretest.DTLS(p.t, socket, netip.MustParseAddrPort(to), p.id, p.cred.Key)
	default:
		c, err := d.webSocket(e.ConnectionType + "://" + to + "/")
		if err != nil {
			p.t.Fatal(err)
		}
		p.Conn = wiretest.WebSocket(p.t, c)
	}
}

func (p *player) tell(to *player, text string) {
	p.t.Helper()
	m := proto.Relay{From: p.id, To: to.id, Payload: []byte(text)}.Append(nil)
	for range 100 {
		if err := p.Send(m); err != nil {
			p.t.Fatal(err)
		}
		if to.Receives(200*time.Millisecond, wiretest.Equals(m)) {
			return
		}
	}
	p.t.Fatalf("%q did not arrive", text)
}

// webSocket dials, again while it earns 503: the relay answers datagrams a moment
// before it lets WebSockets in.
func (d dialler) webSocket(url string) (*ws.Conn, error) {
	transport := d.transport()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		c, res, err := ws.Dial(ctx, url, &ws.DialOptions{HTTPClient: &http.Client{Transport: transport}, HTTPHeader: d.header})
		if err == nil || ctx.Err() != nil || res == nil || res.StatusCode != http.StatusServiceUnavailable {
			return c, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (d dialler) transport() *http.Transport {
	return &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: d.pool},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			if _, err := netip.ParseAddr(host); err != nil { // relay.example.org is here
				addr = "127.0.0.1:" + port
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
}

func (d dialler) calls() *api.Client {
	c := d.caller(secret)
	c.HTTP.Transport = d.transport()
	return c
}

func (d dialler) host(t *testing.T, kind string) (host *player, code string) {
	t.Helper()
	a, err := d.calls().Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if err != nil {
		t.Fatal(err)
	}
	a.HostConnectionData = a.ConnectionData
	host = d.join(t, a, kind)
	if code, err = d.calls().JoinCode(t.Context(), a.AllocationID); err != nil {
		t.Fatal(err)
	}
	return host, code
}

// TestEveryWay: a host on one way in and players on all others are in one match,
// and the metrics know of them.
func TestEveryWay(t *testing.T) {
	t.Parallel()
	for web, hosts := range map[string][]string{"ws": {"dtls", "ws", "udp"}, "wss": {"dtls", "wss"}} {
		c := local()
		var d dialler
		if web == "wss" {
			c.TLSCert, c.TLSKey, d.pool = newCertificate(t)
			c.AdvertiseName.Host = "relay.example.org"
		}
		d.running = start(t, options(c, Serve))
		for _, kind := range hosts {
			t.Run(fmt.Sprintf("%s beside %s", kind, web), func(t *testing.T) {
				host, code := d.host(t, kind)
				var last *player
				for _, kind := range []string{"dtls", "udp", web} {
					a, err := d.calls().Join(t.Context(), code)
					if err != nil {
						t.Fatal(err)
					}
					last = d.join(t, a, kind)
					connect := proto.ConnectRequest{ID: last.id, ConnectionData: last.cred.HostConnectionData}.Append(nil)
					last.Ask(connect, wiretest.HasType(proto.TypeAccepted))
					last.tell(host, "up from "+kind)
					host.tell(last, "down to "+kind)
				}
				checkMetrics(t, d.AdminURL())
			})
		}
	}
}

func checkMetrics(t *testing.T, admin string) {
	t.Helper()
	_, page := fetch(t, admin+"/metrics")
	for _, zero := range []string{
		"ferry_dtls_sessions", `ferry_dtls_events_total{event="established"}`,
		"ferry_websocket_connections", "ferry_websocket_opened_total", `ferry_websocket_messages_total{direction="out"}`,
	} {
		if strings.Contains(page, "\n"+zero+" 0\n") || !strings.Contains(page, "\n"+zero+" ") {
			t.Errorf("%s is 0 or missing", zero)
		}
	}
}

// TestOwnTraffic: a process with a relay shows its own rate to ferry ctl nodes, as relays of a fleet do.
func TestOwnTraffic(t *testing.T) {
	t.Parallel()
	d := dialler{running: start(t, options(local(), Serve))}
	host, _ := d.host(t, "udp")
	ping := proto.Ping{ID: host.id, Number: 7}.Append(nil)
	testkit.Within(t, time.Minute, "a rate of the relay", func() bool {
		host.Ask(ping, wiretest.Equals(ping))
		var all operator.Nodes
		_, body := fetch(t, d.AdminURL()+"/nodes")
		return json.Unmarshal([]byte(body), &all) == nil && all.Nodes[0].Traffic.SentBytes > 0 && all.Nodes[0].Matches == 1
	})
}

// TestWebSocketAddress: a player over WebSocket has the address that a trusted proxy tells, for all that an
// operator asks, and DTLS players theirs. A ban says once what it ends.
func TestWebSocketAddress(t *testing.T) {
	t.Parallel()
	c := local()
	c.TrustedProxies = []config.Network{network("127.0.0.0/8")}
	d := dialler{running: start(t, options(c, Serve))}
	for _, from := range []string{"198.51.100.7", "2001:db8::7", "", "dtls"} {
		kind, want := "ws", from
		d.header = http.Header{"X-Forwarded-For": {from}}
		switch from {
		case "":
			d.header = nil // The proxy does not tell it.
		case "dtls":
			kind, want = "dtls", "127.0.0.1:"
		}
		a, err := d.calls().Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
		if err != nil {
			t.Fatal(err)
		}
		inner := netip.MustParseAddrPort(strings.TrimPrefix(d.URL(), "http://")) // A relay behind a proxy advertises that only.
		a.ServerEndpoints = append(a.ServerEndpoints, api.ServerEndpoint{
			ConnectionType: "ws", Network: "tcp", Reliable: true, Host: inner.Addr().String(), Port: int(inner.Port()),
		})
		host := d.join(t, a, kind)
		var all operator.Allocations
		if _, body := fetch(t, d.AdminURL()+"/allocations?match="+host.id.String()); json.Unmarshal([]byte(body), &all) != nil {
			t.Fatal(body)
		}
		i := slices.IndexFunc(all.Allocations, func(a operator.Allocation) bool { return a.ID == host.id.String() })
		if got := all.Allocations[i].Endpoint; !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: listed at %q", from, got)
		}
		var why operator.Why
		if _, body := fetch(t, d.AdminURL()+"/why/"+host.id.String()); json.Unmarshal([]byte(body), &why) != nil {
			t.Fatal(body)
		}
		bound := slices.IndexFunc(why.Events, func(e operator.WhyEvent) bool { return e.What == "bound" })
		if bound < 0 || !strings.HasPrefix(why.Events[bound].Endpoint, want) {
			t.Errorf("%q: %+v", from, why.Events)
		}
		if want == "" || kind == "dtls" {
			continue
		}
		testkit.Within(t, time.Minute, "the search to find "+want, func() bool { // It keeps its list for a moment.
			var found operator.Matches
			_, body := fetch(t, d.AdminURL()+"/matches?q="+want)
			return json.Unmarshal([]byte(body), &found) == nil && found.Total == 1
		})
		addr := netip.MustParseAddr(want)
		got, err := d.operator.status.bans.Affected(t.Context(), &operator.Ban{Prefix: netip.PrefixFrom(addr, addr.BitLen())})
		if err != nil || got != (operator.Affected{WebSockets: 1}) {
			t.Errorf("%q: a ban ends %+v, %v", from, got, err)
		}
	}
}

// TestEndWithWebSockets: they are closed as the relay says, not cut, and Run
// leaves nothing of them.
func TestEndWithWebSockets(t *testing.T) {
	t.Parallel()
	d := dialler{running: start(t, options(local(), Serve))}
	host, _ := d.host(t, "ws")
	d.cancel()
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
	<-host.Got
	if status := ws.CloseStatus(host.Err); status != ws.StatusGoingAway {
		t.Errorf("closed with %d: %v", status, host.Err)
	}
	if open := d.relay.engine.WebSocket.Stats().Open; open != 0 {
		t.Errorf("%d are open", open)
	}
}

// TestWebSocketsOutlive: the time-outs of HTTP calls are not theirs.
func TestWebSocketsOutlive(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second // enough for calls on a busy machine
	d := dialler{running: startChanged(t, options(local(), Serve), func(a *App) {
		s := a.api.web.HTTP
		s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = limit, limit, limit
	})}
	host, _ := d.host(t, "ws")
	time.Sleep(limit + limit/4)
	ping := proto.Ping{ID: host.id, Number: 7}.Append(nil)
	host.Ask(ping, wiretest.Equals(ping))
	if st := d.relay.engine.WebSocket.Stats(); st.Opened != 1 || st.Open != 1 {
		t.Errorf("%+v", st)
	}
}

// TestWebSocketOff: WebSocket that is turned off is neither served nor advertised.
func TestWebSocketOff(t *testing.T) {
	t.Parallel()
	c := local()
	c.WebSocket = false
	d := dialler{running: start(t, options(c, Serve))}
	a, err := d.calls().Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil || len(a.ServerEndpoints) != 2 || a.ServerEndpoints[0].ConnectionType != "udp" ||
		a.ServerEndpoints[1].ConnectionType != "dtls" {
		t.Errorf("%v, %v", a.ServerEndpoints, err)
	}
	if status, _ := fetch(t, d.URL()+"/"); status != http.StatusNotFound {
		t.Errorf("/ answers %d", status)
	}
	if _, page := fetch(t, d.AdminURL()+"/metrics"); strings.Contains(page, "websocket") {
		t.Error("metrics of what is off")
	}
}

// TestWebSocketCallers: limits go by the address that a trusted proxy reports, and
// origins hold for WebSocket and API.
func TestWebSocketCallers(t *testing.T) {
	t.Parallel()
	c := local()
	c.MaxWebSockets, c.TrustedProxies = 16, []config.Network{network("127.0.0.0/8")}
	c.AllowOrigins = []string{"https://game.example.org"}
	d := dialler{running: start(t, options(c, Serve))}
	for _, step := range []struct{ from, origin, want string }{
		{"198.51.100.1", "", ""},
		{"198.51.100.2", "", ""},
		{"198.51.100.1", "", ""}, // takes the place of the first, which has bound nothing
		{"198.51.100.3", "https://game.example.org", ""},
		{"198.51.100.4", "https://other.example.org", "403"},
	} {
		d.header = http.Header{"X-Forwarded-For": {step.from}}
		if step.origin != "" {
			d.header.Set("Origin", step.origin)
		}
		conn, err := d.webSocket("ws://" + d.apiAddr().String())
		if err == nil {
			defer conn.CloseNow()
		}
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%+v: %v", step, err)
		}
	}
	d.awaitShed(t)
	for origin, want := range map[string]string{"https://game.example.org": "https://game.example.org", "https://other.example.org": ""} {
		r, _ := http.NewRequestWithContext(t.Context(), "OPTIONS", d.URL()+"/v1/allocate", nil)
		r.Header.Set("Origin", origin)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("a page of %s receives %q", origin, got)
		}
	}
}

// awaitShed waits until one WebSocket has ended for another of its address.
func (d dialler) awaitShed(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "one WebSocket has ended for another", func() bool {
		return d.relay.engine.WebSocket.Stats().Ended["shed"] == 1
	})
}

func (d dialler) through(header string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: d.pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, d.apiAddr().String())
			if err == nil {
				_, err = io.WriteString(conn, header)
			}
			return conn, err
		},
	}}
}

// proxyHeader is version 1 of the PROXY protocol.
func proxyHeader(from string) string {
	return fmt.Sprintf("PROXY TCP4 %s 203.0.113.1 40000 443\r\n", from)
}

// TestProxyProtocol: with and without TLS behind the header, callers of the API
// and WebSockets are counted by the address that a trusted proxy reports.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		c := local()
		c.ProxyProtocol, c.TrustedProxies, c.MaxWebSockets = true, []config.Network{network("127.0.0.1/32")}, 16
		var d dialler
		if secure {
			c.TLSCert, c.TLSKey, d.pool = newCertificate(t)
		}
		d.running = start(t, options(c, Serve))
		calls := 0
		for got := 401; got == 401; calls++ {
			got = d.regions(t, "198.51.100.7")
		}
		if calls <= 120 {
			t.Errorf("call %d of an address is refused", calls)
		}
		if got := d.regions(t, "198.51.100.8"); got != 401 {
			t.Errorf("another address: %d", got)
		}
		for i, from := range []string{"198.51.100.7", "198.51.100.7", "198.51.100.8"} {
			conn, res, err := ws.Dial(t.Context(), d.URL(), &ws.DialOptions{
				HTTPClient: d.through(proxyHeader(from)),
				// A client's own word, behind what the proxy says.
				HTTPHeader: http.Header{"X-Forwarded-For": {"192.0.2.99"}},
			})
			if err != nil {
				t.Fatalf("WebSocket %d: %v, %v", i, res, err)
			}
			defer conn.CloseNow()
		}
		d.awaitShed(t)
	}
}

func (d dialler) regions(t *testing.T, from string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL()+"/v1/regions", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := d.through(proxyHeader(from)).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestProxyProtocolYields: connections through a proxy of TCP count by their client, so that
// those of one network do not keep others out.
func TestProxyProtocolYields(t *testing.T) {
	t.Parallel()
	c := local()
	c.ProxyProtocol, c.TrustedProxies, c.MaxHTTPConnections = true, []config.Network{network("127.0.0.1/32")}, 4
	d := dialler{running: start(t, options(c, Serve))}
	for i := range 4 {
		conn, err := net.Dial("tcp", d.apiAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, proxyHeader(fmt.Sprint("198.51.100.", i))+"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.regions(t, "203.0.113.8"); got != 401 {
		t.Errorf("status %d", got)
	}
	if n := d.operator.status.metrics().EvictedTotal; n != 1 {
		t.Errorf("%d connections ended for the call", n)
	}
}

// TestProxyProtocolForged: only a trusted proxy can report an address, and a
// trusted proxy has to.
func TestProxyProtocolForged(t *testing.T) {
	t.Parallel()
	c := local()
	c.ProxyProtocol, c.TrustedProxies = true, []config.Network{network("192.0.2.0/24")}
	d := dialler{running: start(t, options(c, Serve))}
	conn, err := net.Dial("tcp", d.apiAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, proxyHeader("198.51.100.7")+"GET /v1/regions HTTP/1.1\r\nHost: x\r\n\r\n")
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("a forged header earned %.60q, %v", answer, err)
	}

	c.TrustedProxies = []config.Network{network("127.0.0.1/32")}
	d = dialler{running: start(t, options(c, Serve))}
	if status, err := d.withoutHeader(); err == nil {
		t.Errorf("a proxy without a header earned %d", status)
	}
	testkit.Within(t, time.Minute, "the count", func() bool { return d.api.rejected.header.Load() == 1 })
	if _, page := fetch(t, d.AdminURL()+"/metrics"); !strings.Contains(page, `ferry_http_connections_refused_total{reason="proxy_header"} 1`) {
		t.Error("the metrics do not know of it")
	}
}

func (d dialler) withoutHeader() (int, error) {
	res, err := d.through("").Get(d.URL() + "/v1/regions")
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

func TestProxyProtocolNeedsProxies(t *testing.T) {
	t.Parallel()
	c := local()
	c.ProxyProtocol = true
	if err := Check(c, Serve); !errors.Is(err, ErrProxyProtocol) {
		t.Errorf("%v", err)
	}
}
