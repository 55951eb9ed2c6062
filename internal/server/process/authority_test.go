package process

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/acme"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// authority is a certificate authority that speaks ACME as far as RFC 8555 asks
// for one order at a time. It proves names by TLS-ALPN-01 and believes signatures,
// which the library's own tests are about.
type authority struct {
	t    *testing.T
	srv  *httptest.Server
	dial func() string // where the names lead to
	root testkit.Certificate

	mu         sync.Mutex // guards what follows
	thumbprint string     // of the account
	name       string     // of the order
	proven     bool
	chain      []byte
	orders     int
	refuse     bool
	serial     int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	root := testkit.SelfSigned(t, func(x *x509.Certificate) { x.KeyUsage = x509.KeyUsageCertSign })
	a := &authority{t: t, root: root, serial: 100}
	a.srv = httptest.NewServer(a)
	t.Cleanup(a.srv.Close)
	return a
}

type signed struct{ Protected, Payload string }

func (s signed) header() (h struct {
	JWK   struct{ X, Y string }
	Nonce string
}) {
	_ = json.Unmarshal(unbase64(s.Protected), &h) // What is missing is noticed where it is used.
	return h
}

func unbase64(s string) []byte {
	b, _ := base64.RawURLEncoding.DecodeString(s)
	return b
}

func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	url := func(path string) string { return a.srv.URL + path }
	w.Header().Set("Replay-Nonce", fmt.Sprint("nonce-", time.Now().UnixNano()))
	var s signed
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		if err := json.Unmarshal(body, &s); err != nil || s.header().Nonce == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	state := map[bool]string{false: "pending", true: "valid"}[a.proven]
	switch r.URL.Path {
	case "/dir":
		answer(w, 200, map[string]any{
			"newNonce": url("/nonce"), "newAccount": url("/account"), "newOrder": url("/order"),
			"revokeCert": url("/revoke"), "keyChange": url("/change"),
		})
	case "/nonce":
	case "/account":
		a.account(s)
		w.Header().Set("Location", url("/accounts/1"))
		answer(w, 201, map[string]any{"status": "valid"})
	case "/order":
		a.order(w, s, url)
	case "/authz":
		answer(w, 200, map[string]any{
			"status": state, "identifier": map[string]string{"type": "dns", "value": a.name},
			"challenges": []any{map[string]string{"type": "tls-alpn-01", "url": url("/proof"), "token": "a-token", "status": state}},
		})
	case "/proof":
		a.proven = !a.refuse && a.proof()
		answer(w, 200, map[string]string{"type": "tls-alpn-01", "url": url("/proof"), "token": "a-token", "status": "processing"})
	case "/orders/1":
		answer(w, 200, map[string]any{"status": map[bool]string{false: "ready", true: "valid"}[a.chain != nil],
			"finalize": url("/finalize"), "certificate": url("/cert")})
	case "/finalize":
		a.sign(s)
		w.Header().Set("Location", url("/orders/1"))
		answer(w, 200, map[string]any{"status": "valid", "finalize": url("/finalize"), "certificate": url("/cert")})
	case "/cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(a.chain)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (a *authority) account(s signed) {
	jwk := s.header().JWK
	// The point is what the client sent; only its digest is needed.
	sum := sha256.Sum256([]byte(`{"crv":"P-256","kty":"EC","x":"` + jwk.X + `","y":"` + jwk.Y + `"}`)) // RFC 7638
	a.thumbprint = base64.RawURLEncoding.EncodeToString(sum[:])
}

func (a *authority) order(w http.ResponseWriter, s signed, url func(string) string) {
	a.orders++
	if a.refuse {
		answer(w, 403, map[string]any{"type": "urn:ietf:params:acme:error:rejectedIdentifier", "detail": "not today", "status": 403})
		return
	}
	var asked struct{ Identifiers []struct{ Value string } }
	if err := json.Unmarshal(unbase64(s.Payload), &asked); err != nil || len(asked.Identifiers) != 1 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.name, a.proven, a.chain = asked.Identifiers[0].Value, false, nil
	w.Header().Set("Location", url("/orders/1"))
	answer(w, 201, map[string]any{
		"status": "pending", "identifiers": []any{map[string]string{"type": "dns", "value": a.name}},
		"authorizations": []string{url("/authz")}, "finalize": url("/finalize"),
	})
}

// proof asks the server that the name leads to (RFC 8737).
func (a *authority) proof() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		ServerName: a.name, NextProtos: []string{acme.ALPNProto}, InsecureSkipVerify: true, // It signs itself.
	}}
	conn, err := dialer.DialContext(ctx, "tcp", a.dial())
	if err != nil {
		a.t.Logf("the proof of %s: %v", a.name, err)
		return false
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	sum := sha256.Sum256([]byte("a-token." + a.thumbprint))
	for _, e := range state.PeerCertificates[0].Extensions {
		var got []byte
		if !e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}) {
			continue
		}
		if _, err := asn1.Unmarshal(e.Value, &got); err == nil && string(got) == string(sum[:]) {
			return state.NegotiatedProtocol == acme.ALPNProto && state.PeerCertificates[0].VerifyHostname(a.name) == nil
		}
	}
	return false
}

func (a *authority) sign(s signed) {
	var asked struct{ CSR string }
	_ = json.Unmarshal(unbase64(s.Payload), &asked)
	csr, err := x509.ParseCertificateRequest(unbase64(asked.CSR))
	if err != nil || !a.proven || len(csr.DNSNames) != 1 || csr.DNSNames[0] != a.name {
		a.t.Errorf("a request for %v, proven %v: %v", csr, a.proven, err)
		return
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), DNSNames: csr.DNSNames, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(90 * 24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root.Certificate, csr.PublicKey, a.root.Key)
	if err != nil {
		a.t.Error(err)
		return
	}
	a.chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *authority) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.orders
}

func (a *authority) refusing(refuse bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

func domains(t *testing.T, names ...string) (all []config.Name) {
	t.Helper()
	for _, n := range names {
		var name config.Name
		if err := name.UnmarshalText([]byte(n)); err != nil {
			t.Fatal(err)
		}
		all = append(all, name)
	}
	return all
}

func (a *authority) shake(r running, name string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: a.root.Pool()}}
	conn, err := dialer.DialContext(ctx, "tcp", r.api.addr().String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

func (a *authority) leads(r *running) { a.dial = func() string { return r.api.addr().String() } }

func sameName(c *x509.Certificate, name string) bool {
	return strings.Join(c.DNSNames, ",") == name
}
