package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// The relays of the tests.
var (
	testRelay  = alloc.RelayID{0x10, 0x11, 0x12, 15: 0x1f}
	otherRelay = alloc.RelayID{0xa0, 0xa1, 0xa2, 15: 0xaf}
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// patient bounds what must happen sooner or later; the rest is for a busy
// machine.
const patient = time.Minute

// house is a relay's listener, an API that dials, and who signs for both.
type house struct {
	ca     *CA
	dir    string
	relay  *fakeRelay
	board  *fakeOperator
	server *Server
	dialer *Dialer
	log    *testkit.LogBuffer
}

// newHouse makes a house in which nothing runs yet.
func newHouse(t testing.TB) *house {
	t.Helper()
	x := &house{ca: newTestCA(t), dir: t.TempDir(), relay: newFakeRelay(), log: new(testkit.LogBuffer)}
	x.board = &fakeOperator{relay: x.relay}
	logger := slog.New(slog.NewTextHandler(x.log, nil))
	var err error
	x.server, err = NewServer(Config{
		Addr: loopback, Relay: x.relay, Operator: x.board, ID: testRelay, Logger: logger,
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

// startHouse makes a house in which all runs until the test ends.
func startHouse(t testing.TB) *house {
	t.Helper()
	x := newHouse(t)
	start(t, x.server.Run)
	x.startDialer(t)
	return x
}

func (x *house) startDialer(t testing.TB) {
	start(t, x.dialer.Run)
	testkit.Within(t, patient, "the dialer runs", func() bool {
		x.dialer.mu.Lock()
		defer x.dialer.mu.Unlock()
		return x.dialer.running
	})
}

// patiently is the context of a call that has to come through: without a
// deadline it would have no more than defaultDeadline.
func patiently(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

// start runs something until the test ends.
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

// issue writes a certificate of the house's authority and returns its files.
func (x *house) issue(t testing.TB, name string, r Request) Files {
	t.Helper()
	return writeFiles(t, x.dir, name, x.ca, x.ca, r)
}

// writeFiles writes a certificate that by has signed, for a node that believes
// the authority ca.
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

// node is the house's relay as the registry would have it.
func (x *house) node() fleet.Node {
	return fleet.Node{Relay: testRelay, Control: x.server.Addr().String()}
}

func (x *house) remote() fleet.Remote { return x.dialer.Relay(x.node()) }

// rawClient is a caller with a certificate of its own, nil for none, that
// believes whom the house's API believes.
func (x *house) rawClient(t testing.TB, pair *tls.Certificate) *http.Client {
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

// apiClient is a caller with the certificate of the house's API.
func (x *house) apiClient(t testing.TB) *http.Client {
	return x.rawClient(t, &x.dialer.creds.current.Load().pair)
}

// post makes one call and returns status and body; status 0 and the error's text
// if there was no answer.
func (x *house) post(t testing.TB, c *http.Client, path string, header map[string]string, body string) (int, string) {
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
	testHostOf4 = `{"project":"game","environment":"live","player":"` + testPlayer + `","maxConnections":4}`
)

// keyed are the headers of a reservation.
func keyed(k key) map[string]string {
	return map[string]string{headerDeadline: "10000", headerKey: k.String()}
}

// unkeyed are the headers of any other call.
func unkeyed() map[string]string { return map[string]string{headerDeadline: "10000"} }

// verdictOf returns the name of a verdict in an answer.
func verdictOf(t testing.TB, body string) string {
	t.Helper()
	var a refusalAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil || a.Error == "" {
		t.Fatalf("not a refusal: %s", body)
	}
	return a.Error
}

func testHost() alloc.HostRequest {
	return alloc.HostRequest{
		Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: alloc.PlayerHash{1, 2, 3}, MaxConnections: 4,
	}
}

// wantUnavailable checks an error of a call that did not come through.
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
