package websocket

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/net/forwarded"
	"github.com/ferryrelay/ferry/internal/net/proxyproto"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestUpgradeAnswer(t *testing.T) {
	t.Parallel()
	tr, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", strings.Repeat("x", 3000)) // As middleware may.
		tr.ServeHTTP(w, r)
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx, make(intake, 1)) }()
	defer func() { cancel(); <-done }()
	<-tr.Running()

	r := &rig{Transport: tr, t: t, url: srv.URL}
	conn, _, answer := r.dialRaw("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nOrigin: https://game.example\r\n")
	defer conn.Close()
	lower := strings.ToLower(answer)
	for _, want := range []string{
		"http/1.1 101 ", "\r\nupgrade: websocket\r\n", "\r\nconnection: upgrade\r\n",
		"\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n",
	} {
		if !strings.Contains(lower, want) {
			t.Errorf("%q lacks %q", answer, want)
		}
	}
	for _, not := range []string{"sec-websocket-protocol", "sec-websocket-extensions", "x-request-id"} {
		if strings.Contains(lower, not) {
			t.Errorf("%q has %s", answer, not)
		}
	}
	if len(answer) > 500 {
		t.Errorf("the answer has %d bytes", len(answer))
	}
}

// TestSubprotocol: one offered subprotocol is confirmed, since a browser fails the connection
// without, and none to a client that offers none.
func TestSubprotocol(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	for _, test := range []struct{ headers, want string }{
		{"", ""},
		{"Sec-WebSocket-Protocol: binary\r\n", "binary"}, // Emscripten
		{"Sec-WebSocket-Protocol: base64, binary\r\n", "binary"},
		{"Sec-WebSocket-Protocol: base64\r\nSec-WebSocket-Protocol: Binary\r\n", "Binary"},
		{"Sec-WebSocket-Protocol: relay, chat\r\n", "relay"},
		{"Sec-WebSocket-Protocol: ,\r\n", ""},
	} {
		conn, _, answer := r.dialRaw(test.headers)
		var got []string
		for line := range strings.Lines(answer) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); strings.EqualFold(name, "Sec-WebSocket-Protocol") {
				got = append(got, value)
			}
		}
		if strings.Join(got, "|") != test.want {
			t.Errorf("%q is answered with %q, want %q", test.headers, got, test.want)
		}
		conn.Close()
	}
}

func TestNoExtensions(t *testing.T) {
	t.Parallel()
	r := start(t, Config{})
	c, resp, err := ws.Dial(t.Context(), r.url, &ws.DialOptions{
		CompressionMode: ws.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if resp.Header.Get("Sec-WebSocket-Extensions") != "" {
		t.Error(resp.Header)
	}
	serial := r.firstMessage(c)
	r.Send(serial, []byte(strings.Repeat("a", 1000)))
	if got := read(t, c); len(got) != 1000 {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	handshake := []string{
		"Upgrade", "WebSocket", "Connection", "keep-alive, upgrade", "Sec-WebSocket-Version", "13",
		"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==",
	}
	r := start(t, Config{AllowOrigins: []string{"https://game.example"}})
	stopped := start(t, Config{})
	stopped.stop()
	for _, test := range []struct {
		name    string
		rig     *rig
		headers []string
		status  int
		text    string
		reason  refusal
	}{
		{"no upgrade", r, nil, 426, "reverse proxy", refusedNoUpgrade},
		{"Upgrade without Connection", r, handshake[:2], 426, "Connection", refusedNoUpgrade},
		{"another origin", r, append([]string{"Origin", "https://evil.example"}, handshake...), 403, "origin", refusedOrigin},
		{"no key", r, handshake[:6], 400, "Key", refusedHandshake},
		{"an old version", r, append([]string{"Sec-WebSocket-Version", "8"}, handshake[:4]...), 400, "version", refusedHandshake},
		{"stopped", stopped, handshake, 503, "does not run", refusedStopped},
	} {
		before := test.rig.Stats().Refused[test.reason.String()]
		status, _, body := get(t, test.rig.url, test.headers...)
		if status != test.status || !strings.Contains(body, test.text) {
			t.Errorf("%s: %d %q", test.name, status, body)
		}
		if got := test.rig.Stats().Refused[test.reason.String()]; got != before+1 {
			t.Errorf("%s: %v counted %d times", test.name, test.reason, got-before)
		}
	}
	for _, origin := range []string{"", "HTTPS://game.example"} {
		c, _, err := ws.Dial(t.Context(), r.url, &ws.DialOptions{HTTPHeader: http.Header{"Origin": {origin}}})
		if err != nil {
			t.Errorf("origin %q: %v", origin, err)
			continue
		}
		c.CloseNow()
	}
	testkit.Eventually(t, "no connection is open", func() bool { return r.Stats().Open == 0 })
}

func TestBannedSources(t *testing.T) {
	t.Parallel()
	r := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	from := func(ip string) (*ws.Conn, *http.Response, error) {
		return ws.Dial(t.Context(), r.url, &ws.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {ip}}})
	}
	banned, _, err := from("192.0.2.7")
	if err != nil {
		t.Fatal(err)
	}
	defer banned.CloseNow()
	other, _, err := from("198.51.100.7")
	if err != nil {
		t.Fatal(err)
	}
	defer other.CloseNow()
	testkit.Eventually(t, "two connections", func() bool { return r.Stats().Open == 2 })
	r.SetBannedSources([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")})
	if _, _, err := banned.Read(t.Context()); ws.CloseStatus(err) != ws.StatusPolicyViolation {
		t.Errorf("the banned connection ended with %v", err)
	}
	if _, resp, err := from("192.0.2.8"); err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("a connection from the banned network: %v", err)
	}
	testkit.Eventually(t, "one connection", func() bool { return r.Stats().Open == 1 })
	if n, m := r.Stats().Refused[refusedBanned.String()], r.Stats().Ended[endBanned.String()]; n != 1 || m != 1 {
		t.Errorf("%d refused and %d ended, want 1 of each", n, m)
	}
	unknown, _, err := ws.Dial(t.Context(), r.url, nil) // The proxy does not tell, and its own address is banned.
	if err != nil {
		t.Errorf("a client whose address is not known: %v", err)
	} else {
		unknown.CloseNow()
	}
	r.SetBannedSources(nil)
	again, _, err := from("192.0.2.8")
	if err != nil {
		t.Fatalf("after the ban: %v", err)
	}
	again.CloseNow()
}

func TestNotRunning(t *testing.T) {
	t.Parallel()
	tr, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(tr)
	defer srv.Close()
	if _, resp, err := ws.Dial(t.Context(), srv.URL, nil); err == nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("before Run: %v, %v", resp, err)
	}
	if tr.Send(1, nil) {
		t.Error("a message was queued without a connection")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Run(ctx, nil); err != nil {
		t.Error(err)
	}
	if err := tr.Run(ctx, nil); err != errAlreadyRun {
		t.Errorf("the second Run: %v", err)
	}
}

func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	r := start(t, Config{
		MaxConns: 5, MaxConnsPerAddress: 2, closeTimeout: 50 * time.Millisecond,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	})
	dial := func(from string) (*ws.Conn, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		header := http.Header{}
		if from != "" {
			header.Set("X-Forwarded-For", from)
		}
		c, resp, err := ws.Dial(ctx, r.url, &ws.DialOptions{HTTPHeader: header})
		if err != nil {
			return nil, resp.StatusCode
		}
		t.Cleanup(func() { c.CloseNow() })
		return c, resp.StatusCode
	}
	var first *ws.Conn
	for i, test := range []struct {
		from string
		want int
	}{
		{"2001:db8:0:1::1", 101}, {"2001:db8:0:ff::2", 101},
		{"2001:db8:0:7::3", 429},        // one /56
		{"192.0.2.1, 2001:db8::4", 429}, // The client wrote the first entry.
		{"2001:db8:0:100::1", 101},      // another /56
		{"", 101}, {"", 101}, {"", 503}, // no address of a client: limited in total only
		{"192.0.2.7, 127.0.0.9, ::1", 503}, // full
	} {
		c, got := dial(test.from)
		if got != test.want {
			t.Errorf("%d, from %q: %d, want %d", i, test.from, got, test.want)
		}
		if c != nil { // Only a bound connection keeps its place.
			r.Send(r.firstMessage(c), bindReceived)
			read(t, c)
		}
		if i == 0 {
			first = c
		}
	}
	if s := r.Stats(); s.Open != 5 || s.Refused[refusedAddress.String()] != 2 || s.Refused[refusedTotal.String()] != 2 {
		t.Errorf("%+v", s)
	}
	first.Close(ws.StatusNormalClosure, "")
	testkit.Eventually(t, "the first connection has ended", func() bool { return r.Stats().Open == 4 })
	if _, got := dial("2001:db8::4"); got != 101 {
		t.Errorf("in place of the first: %d", got)
	}
	r.stop()
	if len(r.admission.perAddress) != 0 {
		t.Errorf("addresses are left: %v", r.admission.perAddress)
	}
}

// TestShed: connections that bind no allocation give way to newcomers: the oldest of
// the address, or of the address with most of them. Bound ones stay.
func TestShed(t *testing.T) {
	t.Parallel()
	r := start(t, Config{
		MaxConns: 6, MaxConnsPerAddress: 3, bindTimeout: time.Hour,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	})
	open := func(from string) *ws.Conn {
		t.Helper()
		c, resp, err := ws.Dial(t.Context(), r.url, &ws.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {from}}})
		if err != nil {
			t.Fatalf("%s: %v, %v", from, err, resp)
		}
		t.Cleanup(func() { c.CloseNow() })
		r.firstMessage(c)
		return c
	}
	ended := func(c *ws.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("not ended: %v", err)
		}
	}
	bind := func(from string) *ws.Conn {
		c := open(from)
		r.Send(r.serial.Load(), bindReceived)
		read(t, c)
		return c
	}
	player := bind("192.0.2.1")
	idle := []*ws.Conn{open("192.0.2.1"), open("192.0.2.1")}
	fourth := open("192.0.2.1") // The attacker's address is at its limit.
	ended(idle[0])
	others := []*ws.Conn{open("192.0.2.2"), open("192.0.2.3"), open("192.0.2.4")}
	fifth := open("192.0.2.5") // All are full, and 192.0.2.1 has two of them.
	ended(idle[1])
	sixth := open("192.0.2.6") // All have one: the oldest ends.
	ended(fourth)
	for i, c := range append(others, fifth, sixth) {
		r.Send(r.serial.Load()-uint64(4-i), bindReceived)
		read(t, c)
	}
	if _, resp, err := ws.Dial(t.Context(), r.url, nil); err == nil || resp.StatusCode != 503 {
		t.Errorf("a connection above the limit: %v, %v", resp, err)
	}
	write(t, player, []byte("x"))
	r.in.next(t)
	testkit.Eventually(t, "the count", func() bool { return r.Stats().Ended[endShed.String()] == 3 })
	if s := r.Stats(); s.Open != 6 || s.Refused[refusedTotal.String()] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestClientPrefix: an unknown client counts towards the total, one with a bad header as its proxy.
func TestClientPrefix(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, test := range []struct {
		remote string
		via    []string
		want   string // empty: unknown
	}{
		{"192.0.2.1:5", []string{"203.0.113.9"}, "192.0.2.1/32"},
		{"10.1.1.1:5", []string{"8.8.8.8, 203.0.113.9:61000"}, "203.0.113.9/32"},
		{"10.1.1.1:5", nil, ""},
		{"10.1.1.1:5", []string{"10.2.2.2"}, ""},
		{"10.1.1.1:5", []string{"203.0.113.9, junk"}, "10.1.1.1/32"},
		{"@", nil, ""},
	} {
		r := &http.Request{RemoteAddr: test.remote, Header: http.Header{"X-Forwarded-For": test.via}}
		got, known := countedPrefix(forwarded.Find(r, proxies))
		if known != (test.want != "") || known && got.String() != test.want {
			t.Errorf("%s via %q: %v, %v, want %q", test.remote, test.via, got, known, test.want)
		}
	}
}

// TestConfig: the error names the field.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{MaxConnsPerAddress: -2}, "MaxConnsPerAddress"},
		{Config{IdleTimeout: -time.Second}, "IdleTimeout"},
		{Config{TrustedProxies: make([]netip.Prefix, 1)}, "TrustedProxies"},
		{Config{MaxConns: -1}, "MaxConns"},
		{Config{PingInterval: 25 * time.Hour}, "PingInterval"},
		{Config{AllowOrigins: []string{"game.example"}}, `AllowOrigins: "game.example"`},
		{Config{MaxConnsPerAddress: -1, AllowOrigins: []string{"null", "*", "http://localhost:80"}}, ""},
	} {
		_, err := New(test.cfg)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test.cfg, err)
		}
	}
}

func TestProxyAddressLimit(t *testing.T) {
	t.Parallel()
	tr, err := New(Config{MaxConnsPerAddress: 1})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(tr)
	srv.Listener = proxyproto.Listen(srv.Listener, proxyproto.Config{Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	srv.StartTLS()
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	in := make(intake, 9)
	go func() { done <- tr.Run(ctx, in) }()
	defer func() { cancel(); <-done }()
	<-tr.Running()

	for i, want := range []int{101, 429, 101} {
		header := fmt.Sprintf("PROXY TCP4 %s 198.51.100.1 4660 443\r\n", []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"}[i])
		transport := srv.Client().Transport.(*http.Transport).Clone()
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
			if err == nil {
				io.WriteString(conn, header)
			}
			return conn, err
		}
		defer transport.CloseIdleConnections()
		c, resp, err := ws.Dial(t.Context(), srv.URL, &ws.DialOptions{HTTPClient: &http.Client{Transport: transport}})
		if resp == nil || resp.StatusCode != want {
			t.Fatalf("connection %d: %v, %v", i, resp, err)
		}
		if want != 101 {
			continue
		}
		defer c.CloseNow()
		write(t, c, []byte("a"))
		a := in.next(t)
		tr.Send(a.serial, bytes.ToUpper(a.pkt))
		if got := read(t, c); string(got) != "A" {
			t.Errorf("got %q", got)
		}
		tr.Send(a.serial, bindReceived) // Otherwise the next one takes its place.
		read(t, c)
	}
}
