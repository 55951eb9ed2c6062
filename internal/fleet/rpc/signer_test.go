package rpc

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

func newTestSigner(t *testing.T, x *testCluster, name string, r Request) *Signer {
	t.Helper()
	s, err := NewSigner(x.issue(t, name, r), r.Relay)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantAuthor(t *testing.T, s, by *Signer, want placement.Author) {
	t.Helper()
	statement := []byte("a statement")
	cert, signature, err := by.Sign(statement)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(cert.Key, statement, signature); !errors.Is(err, placement.ErrUnknownKey) {
		t.Errorf("before Learn: %v", err)
	}
	if err := s.Learn(cert.Key, cert.DER); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Verify(cert.Key, statement, signature); got != want || err != nil {
		t.Errorf("Verify = %+v, %v; want %+v", got, err, want)
	}
	if _, err := s.Verify(cert.Key, []byte("another statement"), signature); !errors.Is(err, placement.ErrSignature) {
		t.Errorf("another statement: %v", err)
	}
	for i := range signature {
		signature[i] ^= 1
		if _, err := s.Verify(cert.Key, statement, signature); err == nil {
			t.Errorf("byte %d of the signature is not verified", i)
		}
		signature[i] ^= 1
	}
}

func TestSigner(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	api := newTestSigner(t, x, "api-signer", Request{Role: RoleAPI})
	relay := newTestSigner(t, x, "relay-signer", Request{Role: RoleRelay, Relay: testRelay, Hosts: []string{"relay.example", "10.0.0.1"}})
	wantAuthor(t, api, relay, placement.Author{Relay: testRelay})
	wantAuthor(t, relay, api, placement.Author{API: true})
}

// TestSignerKeys: any key that a certificate can have signs.
func TestSignerKeys(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	api := newTestSigner(t, x, "api-signer", Request{Role: RoleAPI})
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]any{"ed25519": ed, "rsa": rsaKey} {
		template, err := newTemplate("relay", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		template.ExtKeyUsage = []x509.ExtKeyUsage{RoleRelay.usage()}
		template.URIs, template.DNSNames = append(template.URIs, RoleRelay.uri()), []string{testRelay.String()}
		public := any(ed.Public())
		if name == "rsa" {
			public = rsaKey.Public()
		}
		der, err := x509.CreateCertificate(rand.Reader, template, x.ca.cert, public, x.ca.key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		files := x.issue(t, name, Request{Role: RoleRelay, Relay: testRelay})
		for file, block := range map[string]*pem.Block{
			files.Certificate: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: private},
		} {
			if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		relay, err := NewSigner(files, testRelay)
		if err != nil {
			t.Fatal(err)
		}
		wantAuthor(t, api, relay, placement.Author{Relay: testRelay})
	}
}

// TestSignerRefuses: a certificate of another CA, of an operator, that has expired, that
// names two relays, or that is stored under another id makes no author.
func TestSignerRefuses(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	api := newTestSigner(t, x, "api-signer", Request{Role: RoleAPI})
	foreign, err := newTestCA(t).Issue(Request{Role: RoleRelay, Relay: testRelay})
	if err != nil {
		t.Fatal(err)
	}
	certs := map[string]*x509.Certificate{"another CA": foreign.cert, "the CA itself": x.ca.cert}
	for name, r := range map[string]Request{
		"an operator": {Role: RoleAdmin}, "expires": {Role: RoleAPI, Valid: time.Nanosecond},
		"two relays": {Role: RoleRelay, Relay: testRelay, Hosts: []string{otherRelay.String()}},
	} {
		issued, err := x.ca.Issue(r)
		if err != nil {
			t.Fatal(err)
		}
		certs[name] = issued.cert
	}
	for name, cert := range certs {
		if err := api.Learn(keyID(cert.Raw), cert.Raw); !errors.Is(err, placement.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good, _, err := newTestSigner(t, x, "relay-signer", Request{Role: RoleRelay, Relay: testRelay}).Sign(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Learn(placement.KeyID{1}, good.DER); !errors.Is(err, placement.ErrSignature) {
		t.Errorf("under another id: %v", err)
	}
	if err := api.Learn(keyID([]byte("noise")), []byte("noise")); !errors.Is(err, placement.ErrSignature) {
		t.Errorf("noise: %v", err)
	}
	if _, err := NewSigner(x.issue(t, "wrong", Request{Role: RoleAPI}), testRelay); !errors.Is(err, ErrFiles) {
		t.Errorf("a relay with the certificate of an API process: %v", err)
	}
	if _, err := NewSigner(x.issue(t, "other", Request{Role: RoleRelay, Relay: otherRelay}), testRelay); !errors.Is(err, ErrFiles) {
		t.Errorf("a relay with the certificate of another one: %v", err)
	}
}

// TestSignerFollowsFiles: after a change of the CA its certificates count and those of
// the CA before do not, although they were known.
func TestSignerFollowsFiles(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	files := x.issue(t, "api-signer", Request{Role: RoleAPI})
	api, err := NewSigner(files, alloc.RelayID{})
	if err != nil {
		t.Fatal(err)
	}
	relay := newTestSigner(t, x, "relay-signer", Request{Role: RoleRelay, Relay: testRelay})
	wantAuthor(t, api, relay, placement.Author{Relay: testRelay})
	next := newTestCA(t)
	y := &testCluster{ca: next, dir: t.TempDir()}
	renewed := y.issue(t, "api-signer", Request{Role: RoleAPI})
	for from, to := range map[string]string{renewed.Certificate: files.Certificate, renewed.Key: files.Key, renewed.CA: files.CA} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := api.creds.load(); err != nil {
		t.Fatal(err)
	}
	cert, signature, err := relay.Sign([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Verify(cert.Key, []byte("x"), signature); !errors.Is(err, placement.ErrUnknownKey) {
		t.Errorf("the CA before: %v", err)
	}
	if err := api.Learn(cert.Key, cert.DER); !errors.Is(err, placement.ErrSignature) {
		t.Errorf("the CA before: %v", err)
	}
	wantAuthor(t, api, newTestSigner(t, y, "relay-signer", Request{Role: RoleRelay, Relay: testRelay}), placement.Author{Relay: testRelay})
}

// TestRecent: the latest values are there, and not many more.
func TestRecent(t *testing.T) {
	t.Parallel()
	var r recent[int]
	digest := func(n int) [32]byte { return [32]byte{byte(n), byte(n >> 8), byte(n >> 16)} }
	const kept = 5
	for n := range 5 * recentSize {
		r.put(digest(n), n)
		if _, ok := r.get(digest(kept)); n >= kept && !ok {
			t.Fatalf("a value that is read is gone after %d others", n)
		}
		if len(r.now)+len(r.before) > 2*recentSize {
			t.Fatalf("%d and %d values after %d", len(r.now), len(r.before), n)
		}
		last := digest(max(n-recentSize+10, 0)) // The value that is read is put again.
		if _, ok := r.now[last]; !ok {
			if _, ok := r.before[last]; !ok {
				t.Fatalf("the value %d before %d is gone", recentSize-10, n)
			}
		}
	}
	if _, ok := r.get(digest(kept + 1)); ok {
		t.Error("a value that was not read is there")
	}
}

func TestSignerRevoked(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	api := newTestSigner(t, x, "api-signer", Request{Role: RoleAPI})
	stolen := x.issue(t, "stolen", Request{Role: RoleRelay, Relay: testRelay})
	relay, err := NewSigner(stolen, testRelay)
	if err != nil {
		t.Fatal(err)
	}
	wantAuthor(t, api, relay, placement.Author{Relay: testRelay})
	cert, signature, err := relay.Sign([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.ca.Revoke(api.creds.files.CA, stolen.Certificate); err != nil {
		t.Fatal(err)
	}
	if err := api.creds.load(); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Verify(cert.Key, []byte("x"), signature); !errors.Is(err, placement.ErrUnknownKey) {
		t.Errorf("a statement: %v", err)
	}
	if err := api.Learn(cert.Key, cert.DER); !errors.Is(err, ErrRevoked) {
		t.Errorf("its certificate: %v", err)
	}
}
