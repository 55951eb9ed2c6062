package rpc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"go.uber.org/goleak"
)

var (
	testRelay  = alloc.RelayID{0x10, 0x11, 0x12, 15: 0x1f}
	otherRelay = alloc.RelayID{0xa0, 0xa1, 0xa2, 15: 0xaf}
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// testTimeout bounds the wait for an event that must happen; most of it is for a busy
// machine.
const testTimeout = time.Minute

type testCluster struct {
	ca       *CA
	dir      string
	relay    *alloctest.Relay
	operator *fakeOperator
	server   *Server
	dialer   *Dialer
	log      *testkit.LogBuffer
}

func newTestCluster(t testing.TB) *testCluster {
	t.Helper()
	x := &testCluster{ca: newTestCA(t), dir: t.TempDir(), relay: newFakeRelay(), log: new(testkit.LogBuffer)}
	x.operator = &fakeOperator{relay: x.relay}
	logger := slog.New(slog.NewTextHandler(x.log, nil))
	var err error
	x.server, err = NewServer(Config{
		Addr: loopback, Relay: x.relay, Operator: x.operator, ID: testRelay, Logger: logger,
		Files: x.issue(t, "relay", Request{Role: RoleRelay, Relay: testRelay}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.server.Close(); err != nil {
			t.Error(err)
		}
	})
	x.dialer, err = NewDialer(DialerConfig{Files: x.issue(t, "api", Request{Role: RoleAPI}), Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func startTestCluster(t testing.TB) *testCluster {
	t.Helper()
	x := newTestCluster(t)
	start(t, x.server.Run)
	x.startDialer(t)
	return x
}

func (x *testCluster) startDialer(t testing.TB) {
	start(t, x.dialer.Run)
	testkit.Within(t, testTimeout, "the dialer runs", func() bool {
		x.dialer.mu.Lock()
		defer x.dialer.mu.Unlock()
		return x.dialer.running
	})
}

// testContext returns the context of a call that must succeed. Without a deadline it
// would have defaultDeadline only.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newTestCA(t testing.TB) *CA {
	t.Helper()
	ca, err := NewCA("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (x *testCluster) issue(t testing.TB, name string, r Request) Files {
	t.Helper()
	return writeFiles(t, x.dir, name, x.ca, x.ca, r)
}

// writeFiles writes a certificate that by has signed, for a node that trusts the CA ca.
func writeFiles(t testing.TB, dir, name string, by, ca *CA, r Request) Files {
	t.Helper()
	f := Files{
		Certificate: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"),
		CA: filepath.Join(dir, name+"-ca.pem"),
	}
	issued, err := by.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := issued.Write(f.Certificate, f.Key); err != nil {
		t.Fatal(err)
	}
	if err := writePair(ca.cert, ca.key, f.CA, filepath.Join(dir, name+"-ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	return f
}

func (x *testCluster) node() placement.Node {
	return placement.Node{Relay: testRelay, Control: x.server.Addr().String(), Capabilities: placement.Capabilities()}
}

// remote is a relay as the API calls it: its key and the dialer.
func (x *testCluster) remote() placement.Relay { return x.dialer.Relay(x.node()) }

// rawClient returns an HTTP client with the given certificate, nil for none, that
// trusts the cluster's CA.
func (x *testCluster) rawClient(t testing.TB, pair *tls.Certificate) *http.Client {
	t.Helper()
	cfg := x.dialer.creds.client(testRelay)
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair == nil {
			return new(tls.Certificate), nil
		}
		return pair, nil
	}
	transport := &http.Transport{TLSClientConfig: cfg}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (x *testCluster) apiClient(t testing.TB) *http.Client {
	return x.rawClient(t, &x.dialer.creds.current.Load().pair)
}

// post makes one call and returns status and body, or status 0 and the text of the
// error.
func (x *testCluster) post(t testing.TB, c *http.Client, path string, header map[string]string, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+x.server.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(answer)
}

const (
	testPlayer  = "000102030405060708090a0b0c0d0e0f"
	testHostOf4 = `{"project":"game","environment":"live","player":"` + testPlayer + `","maxConnections":4,"clientAddress":"198.18.0.1"}`
)

// testMigration is a call with a ticket of zeros.
var testMigration = `{"project":"game","environment":"live","player":"` + testPlayer +
	`","host":"10111213-1415-1617-1819-1a1b1c1d1e1f","ticket":"` + strings.Repeat("AAAA", len(alloc.ConnectionData{})/3) +
	`","code":"6789BC","clientAddress":""}`

// testLeave is a call.
var testLeave = `{"project":"game","environment":"live","player":"` + testPlayer + `","host":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`

func keyed(k key) map[string]string {
	return map[string]string{headerDeadline: "10000", headerKey: k.String()}
}

func unkeyed() map[string]string { return map[string]string{headerDeadline: "10000"} }

func errorNameOf(t testing.TB, body string) string {
	t.Helper()
	var a refusalAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil || a.Error == "" {
		t.Fatalf("not a refusal: %s", body)
	}
	return a.Error
}

func testHost() alloc.HostRequest {
	return alloc.HostRequest{
		Caller:     alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}},
		PlayerHash: alloc.PlayerHash{1, 2, 3}, MaxConnections: 4,
	}
}

func wantUnavailable(t *testing.T, err error, also ...error) {
	t.Helper()
	if !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("error %v, want alloc.ErrUnavailable", err)
	}
	for _, e := range also {
		if !errors.Is(err, e) {
			t.Errorf("error %v, want %v too", err, e)
		}
	}
}

func newFakeRelay() *alloctest.Relay {
	r := alloctest.NewRelay()
	r.Region, r.Endpoints = "north", []alloc.ServerEndpoint{
		{ConnectionType: "udp", Network: "udp", Host: "192.0.2.9", Port: 7777},
		{ConnectionType: "dtls", Network: "udp", Secure: true, Host: "192.0.2.9", Port: 7777},
		{ConnectionType: "wss", Network: "tcp", Reliable: true, Secure: true, Host: "relay.example.org", Port: 443},
	}
	return r
}

// proxy forwards between an API and a relay. It belongs to one test.
type proxy struct {
	listener net.Listener
	to       string
	// cut says that every connection loses what the relay sends: the first byte of
	// it closes them.
	cut atomic.Bool

	mu    sync.Mutex // guards the following fields
	conns []net.Conn
	open  []*atomic.Bool // of each connection: it loses what the relay sends
	ended bool
	all   sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.closeAll()
		p.all.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		cut := new(atomic.Bool)
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.open = append(p.open, cut)
		if p.ended { // A dial may outlive the call that wanted it.
			in.Close()
			out.Close()
		}
		p.mu.Unlock()
		p.all.Go(func() { _, _ = io.Copy(out, in); out.Close() })
		p.all.Go(func() { p.back(in, out, cut); in.Close(); out.Close() })
	}
}

// back copies the relay's bytes until the proxy is cut.
func (p *proxy) back(in, out net.Conn, cut *atomic.Bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := out.Read(buf)
		if err != nil || p.cut.Load() || cut.Load() {
			return
		}
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cutOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cut := range p.open {
		cut.Store(true)
	}
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, c := range p.conns {
		c.Close()
	}
}

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}
