package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// through dials an app and says first what a proxy would.
func (d dialler) through(header string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: d.pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, d.api.addr().String())
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
// and WebSockets are counted by the address that a trusted proxy tells.
func TestProxyProtocol(t *testing.T) {
	for _, secure := range []bool{false, true} {
		c := local()
		c.ProxyProtocol, c.TrustedProxies, c.MaxAddressWebSockets = true, []config.Network{network("127.0.0.1/32")}, 1
		c.AddressPerMinute = 3
		var d dialler
		if secure {
			c.TLSCert, c.TLSKey, d.pool = newCertificate(t)
		}
		d.running = start(t, options(c, Serve))
		for i, want := range []int{200, 200, 200, 429} {
			if got := d.regions(t, "198.51.100.7"); got != want {
				t.Errorf("call %d: %d, want %d", i, got, want)
			}
		}
		if got := d.regions(t, "198.51.100.8"); got != 200 {
			t.Errorf("somebody else: %d", got)
		}
		for i, step := range []struct {
			from string
			want int
		}{{"198.51.100.7", 101}, {"198.51.100.7", 429}, {"198.51.100.8", 101}} {
			conn, res, err := ws.Dial(t.Context(), d.URL(), &ws.DialOptions{
				HTTPClient: d.through(proxyHeader(step.from)),
				// A client's own word, behind what the proxy says.
				HTTPHeader: http.Header{"X-Forwarded-For": {"192.0.2.99"}},
			})
			if res == nil || res.StatusCode != step.want {
				t.Fatalf("WebSocket %d: %v, %v", i, res, err)
			}
			if err == nil {
				defer conn.CloseNow()
			}
		}
	}
}

func (d dialler) regions(t *testing.T, from string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL()+"/v1/regions", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	res, err := d.through(proxyHeader(from)).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestProxyProtocolForged: nobody but a trusted proxy can tell an address, and a
// trusted proxy has to.
func TestProxyProtocolForged(t *testing.T) {
	c := local()
	c.ProxyProtocol, c.TrustedProxies = true, []config.Network{network("192.0.2.0/24")}
	d := dialler{running: start(t, options(c, Serve))}
	conn, err := net.Dial("tcp", d.api.addr().String())
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
	testkit.Within(t, time.Minute, "the count", func() bool { return d.rejected.header.Load() == 1 })
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
	c := local()
	c.ProxyProtocol = true
	if err := Check(c, Serve); !errors.Is(err, ErrProxyProtocol) {
		t.Errorf("%v", err)
	}
}

// TestWebSocketSettings: the queue's bytes follow its messages, and never are too
// few for one.
func TestWebSocketSettings(t *testing.T) {
	for queue, bytes := range map[int]int{1: 1474, 256: 128 << 10, 4096: 2 << 20} {
		c := local()
		c.WebSocketQueue, c.WebSocketMaxMessage = queue, 1472
		w := websocketConfig(&c, Serve)
		if w.QueueMessages != queue || w.QueueBytes != bytes || w.MaxOutgoing != 1472 {
			t.Errorf("%d: %+v", queue, w)
		}
		if err := Check(c, Serve); err != nil {
			t.Errorf("%d: %v", queue, err)
		}
	}
}
