package rpc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// forge signs a certificate that Issue would not: one that change has modified.
func forge(t *testing.T, ca *CA, r Request, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	issued, err := ca.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	template := *issued.cert
	change(&template)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := sign(&template, ca.cert, key, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{signed.cert.Raw}, PrivateKey: key, Leaf: signed.cert}
}

func expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

// TestCallersAreChecked checks that only an API of this cluster can make reservations,
// and that an operator can describe.
func TestCallersAreChecked(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	as := func(r Role) Request {
		if r == RoleRelay {
			return Request{Role: r, Relay: testRelay}
		}
		return Request{Role: r}
	}
	clientAuth := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	both := func(c *x509.Certificate) { c.URIs = append(c.URIs, RoleAdmin.uri()) }
	foreign, same := newTestCA(t), func(*x509.Certificate) {}
	const refusedInHandshake = ""
	tests := []struct {
		name              string
		pair              *tls.Certificate
		reserve, describe string // name of the error, "ok", or refusedInHandshake
	}{
		{"no certificate", nil, refusedInHandshake, refusedInHandshake},
		{"another authority of the same name", forge(t, foreign, as(RoleAPI), same), refusedInHandshake, refusedInHandshake},
		{"expired", forge(t, x.ca, as(RoleAPI), expired), refusedInHandshake, refusedInHandshake},
		{"not valid yet", forge(t, x.ca, as(RoleAPI), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
			refusedInHandshake, refusedInHandshake},
		{"a relay's, which may only be called", forge(t, x.ca, as(RoleRelay), same), refusedInHandshake, refusedInHandshake},
		{"no role", forge(t, x.ca, as(RoleAPI), func(c *x509.Certificate) { c.URIs = nil }), refusedInHandshake, refusedInHandshake},
		{"an unknown role", forge(t, x.ca, as(RoleAPI), func(c *x509.Certificate) { c.URIs = []*url.URL{Role("root").uri()} }),
			refusedInHandshake, refusedInHandshake},
		{"two roles", forge(t, x.ca, as(RoleAPI), both), refusedInHandshake, refusedInHandshake},
		{"a relay's that may call", forge(t, x.ca, as(RoleRelay), clientAuth), "forbidden", "forbidden"},
		{"an operator's", forge(t, x.ca, as(RoleAdmin), same), "forbidden", "not-found"},
		{"an API's", forge(t, x.ca, as(RoleAPI), same), "ok", "not-found"},
	}
	const describe = `{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`
	for _, tt := range tests {
		c := x.rawClient(t, tt.pair)
		check := func(call, want string, status int, body string) {
			t.Helper()
			switch {
			case want == refusedInHandshake && status == 0 && strings.Contains(body, "tls: "):
			case want == "ok" && status == http.StatusOK:
			case want != "" && want != "ok" && status >= 400 && errorNameOf(t, body) == want:
			default:
				t.Errorf("%s: %s: %d %s, want %q", tt.name, call, status, body, want)
			}
		}
		status, body := x.post(t, c, pathReserveHost, keyed(newKey()), testHostOf4)
		check("reserve", tt.reserve, status, body)
		status, body = x.post(t, c, pathDescribe, unkeyed(), describe)
		check("describe", tt.describe, status, body)
		for _, path := range []string{pathReserveJoiner, pathKeepCode, pathEnd, pathCancel} { // Those of operators: TestOperatorRole.
			if tt.reserve == "forbidden" {
				status, body = x.post(t, c, path, keyed(newKey()), "{}")
				check(path, "forbidden", status, body)
			}
		}
	}
	if made, _ := x.relay.Count(); made != 1 {
		t.Errorf("%d reservations, want 1", made)
	}
	// The listener counts after the caller has got the answer.
	testkit.Within(t, testTimeout, "the error to be counted", func() bool {
		return x.server.Stats().ServerErrors > 0 && strings.Contains(x.log.String(), "refused a caller")
	})
}

func TestOldTLS(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	cfg := x.dialer.creds.client(testRelay)
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if conn, err := tls.Dial("tcp", x.server.Addr().String(), cfg); err == nil {
		conn.Close()
		t.Error("TLS 1.2 is served")
	}
	res, err := http.Get("http://" + x.server.Addr().String() + pathDescribe)
	if err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP is served: %d", res.StatusCode)
		}
	}
}

// TestRelaysAreChecked checks that a server at a relay's address gets no request unless
// it has the relay's certificate.
func TestRelaysAreChecked(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	relay := Request{Role: RoleRelay, Relay: testRelay}
	same := func(*x509.Certificate) {}
	serverAuth := func(c *x509.Certificate) {
		c.ExtKeyUsage, c.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{testRelay.String()}
	}
	for _, tt := range []struct {
		name string
		pair *tls.Certificate
		want bool
	}{
		{"another relay's", forge(t, x.ca, Request{Role: RoleRelay, Relay: otherRelay}, same), false},
		{"another authority's", forge(t, newTestCA(t), relay, same), false},
		{"expired", forge(t, x.ca, relay, expired), false},
		{"an API's", forge(t, x.ca, Request{Role: RoleAPI}, same), false},
		{"an API's that may be called by the relay's id", forge(t, x.ca, Request{Role: RoleAPI}, serverAuth), false},
		{"its address alone", forge(t, x.ca, Request{Role: RoleRelay, Relay: otherRelay, Hosts: []string{"127.0.0.1"}}, same), false},
		{"its own", forge(t, x.ca, relay, same), true},
	} {
		asked := make(chan struct{}, 1)
		control := impostor(t, tt.pair, asked)
		err := x.dialer.Relay(placement.Node{Relay: testRelay, Control: control}).KeepCode(testContext(t), proto.AllocationID{1}, "")
		if got := err == nil; got != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := len(asked) == 1; got != tt.want {
			t.Errorf("%s: it was asked: %v", tt.name, got)
		}
		if !tt.want {
			wantUnavailable(t, err)
		}
	}
	if st := x.dialer.Stats(); st.Lost != 0 {
		t.Errorf("%d calls count as lost, and none was sent", st.Lost)
	}
}

func impostor(t *testing.T, pair *tls.Certificate, asked chan<- struct{}) (control string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			_, _ = w.Write([]byte("{}"))
		}),
		ErrorLog: newRateLimitedLog(slog.New(slog.DiscardHandler), &new(serverCounts).serverErrors),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().String()
}

func TestOwnFiles(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	relay := Request{Role: RoleRelay, Relay: testRelay}
	good := x.issue(t, "good", relay)
	otherKey := x.issue(t, "other", relay)
	serve := func(f Files) error {
		s, err := NewServer(Config{Addr: loopback, Relay: x.relay, Operator: x.operator, ID: testRelay, Files: f})
		if err == nil {
			s.Close()
		}
		return err
	}
	if err := serve(good); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]Files{
		"no files":           {},
		"no key":             {Certificate: good.Certificate, CA: good.CA},
		"another key":        {Certificate: good.Certificate, Key: otherKey.Key, CA: good.CA},
		"a key for a CA":     {Certificate: good.Certificate, Key: good.Key, CA: good.Key},
		"another authority":  writeFiles(t, x.dir, "foreign", newTestCA(t), x.ca, relay),
		"another relay's id": x.issue(t, "wrong", Request{Role: RoleRelay, Relay: otherRelay}),
		"an API's":           x.issue(t, "api2", Request{Role: RoleAPI}),
	} {
		if err := serve(f); !errors.Is(err, ErrFiles) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, f := range map[string]Files{"a relay's": good, "an operator's": x.issue(t, "admin", Request{Role: RoleAdmin})} {
		if _, err := NewDialer(DialerConfig{Files: f}); !errors.Is(err, ErrFiles) {
			t.Errorf("an API with %s: %v", name, err)
		}
	}
	if _, err := NewServer(Config{Addr: x.server.Addr(), Relay: x.relay, Operator: x.operator, ID: testRelay, Files: good}); err == nil {
		t.Error("two listeners at one address")
	}
}

// TestCertificateEndsMeanwhile checks that calls fail on an open connection once the
// caller's certificate has expired.
func TestCertificateEndsMeanwhile(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	pair := forge(t, x.ca, Request{Role: RoleAPI}, expired)
	r := httptest.NewRequest(http.MethodPost, pathReserveHost, strings.NewReader(testHostOf4))
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
	for name, value := range keyed(newKey()) {
		r.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	x.server.ServeHTTP(rec, r)
	if errorNameOf(t, rec.Body.String()) != "forbidden" || rec.Header().Get("Connection") != "close" {
		t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
}
