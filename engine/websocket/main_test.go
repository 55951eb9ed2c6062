package websocket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

// waitLimit is the time limit of waits that end at once unless a test fails.
const waitLimit = 15 * time.Second

type delivery struct {
	serial uint64
	pkt    []byte
}

type intake chan delivery

func (in intake) Deliver(serial uint64, pkt []byte) bool {
	select {
	case in <- delivery{serial, bytes.Clone(pkt)}:
		return true
	default:
		return false
	}
}

func (in intake) next(t testing.TB) delivery {
	t.Helper()
	select {
	case a := <-in:
		return a
	case <-time.After(waitLimit):
		t.Fatal("no message came")
		return delivery{}
	}
}

type rig struct {
	*Transport
	t      testing.TB
	url    string
	client *http.Client
	in     intake
	stop   func()
}

func start(t testing.TB, cfg Config) *rig {
	t.Helper()
	return startOn(t, cfg, httptest.NewServer)
}

// startOn is start with a server of plain HTTP or of TLS. The default of
// closeTimeout is long enough for a slow machine.
func startOn(t testing.TB, cfg Config, server func(http.Handler) *httptest.Server) *rig {
	t.Helper()
	if cfg.closeTimeout == 0 {
		cfg.closeTimeout = waitLimit
	}
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := server(tr)
	t.Cleanup(srv.Close)
	r := &rig{Transport: tr, t: t, url: srv.URL, client: srv.Client(), in: make(intake, 1024)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx, r.in) }()
	r.stop = func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			ended <- nil
		case <-time.After(waitLimit):
			t.Fatal("Run does not return")
		}
	}
	t.Cleanup(func() { r.stop() })
	<-tr.Running()
	return r
}

func (r *rig) dial(headers ...http.Header) *ws.Conn {
	r.t.Helper()
	opts := &ws.DialOptions{HTTPClient: r.client}
	if len(headers) > 0 {
		opts.HTTPHeader = headers[0]
	}
	c, resp, err := ws.Dial(context.Background(), r.url, opts)
	if err != nil {
		r.t.Fatal(err, resp)
	}
	r.t.Cleanup(func() { c.CloseNow() })
	return c
}

func (r *rig) firstMessage(c *ws.Conn) uint64 {
	r.t.Helper()
	write(r.t, c, []byte("hello"))
	return r.in.next(r.t).serial
}

// rawRequest is the handshake of a native client.
const rawRequest = "GET / HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// dialRaw opens a connection without a library, with additional headers. It returns
// the answer to the handshake.
func (r *rig) dialRaw(headers string) (net.Conn, *bufio.Reader, string) {
	r.t.Helper()
	scheme, host, _ := strings.Cut(r.url, "://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		r.t.Fatal(err)
	}
	conn.(*net.TCPConn).SetReadBuffer(4 << 10) // For the tests of slow clients.
	if scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	r.t.Cleanup(func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(waitLimit))
	io.WriteString(conn, rawRequest+headers+"\r\n")
	reader := bufio.NewReader(conn)
	var answer strings.Builder
	for !strings.HasSuffix(answer.String(), "\r\n\r\n") {
		line, err := reader.ReadString('\n')
		if err != nil {
			r.t.Fatalf("%q: %v", answer.String(), err)
		}
		answer.WriteString(line)
	}
	return conn, reader, answer.String()
}

func write(t testing.TB, c *ws.Conn, pkt []byte) {
	t.Helper()
	if err := c.Write(context.Background(), ws.MessageBinary, pkt); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, c *ws.Conn) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	kind, pkt, err := c.Read(ctx)
	if err != nil || kind != ws.MessageBinary {
		t.Fatalf("%v, %v", kind, err)
	}
	return pkt
}

func expectClose(t testing.TB, c *ws.Conn, want ws.StatusCode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if _, pkt, err := c.Read(ctx); ws.CloseStatus(err) != want {
		t.Fatalf("read %x, %v, want status %v", pkt, err, want)
	}
}

// waitForEnd waits until one connection has ended for that reason and none is open.
func (r *rig) waitForEnd(reason end) {
	r.t.Helper()
	testkit.Eventually(r.t, reason.String(), func() bool { s := r.Stats(); return s.Ended[reason.String()] == 1 && s.Open == 0 })
}

func get(t testing.TB, url string, headers ...string) (status int, header http.Header, body string) {
	t.Helper()
	req, _ := http.NewRequest(http.MethodGet, url, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text)
}

func withAndWithoutTLS(t *testing.T, test func(t *testing.T, server func(http.Handler) *httptest.Server)) {
	t.Run("ws", func(t *testing.T) { test(t, httptest.NewServer) })
	t.Run("wss", func(t *testing.T) { test(t, httptest.NewTLSServer) })
}
