package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

const iss = "https://issuer.example.org"

// keys of the tests. An RSA key takes long to make, so there is one of each.
var (
	rsaKey, rsaErr     = rsa.GenerateKey(rand.Reader, 2048)
	smallRSA, smallErr = rsa.GenerateKey(rand.Reader, 1024)
	ecKey, ecErr       = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, edErr    = ed25519.GenerateKey(rand.Reader)
)

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func published(t testing.TB, id string, key crypto.Signer) map[string]any {
	t.Helper()
	for _, err := range []error{rsaErr, smallErr, ecErr, edErr} {
		if err != nil {
			t.Fatal(err)
		}
	}
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "kid": id, "n": b64(k.N.Bytes()), "e": b64(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return map[string]any{"kty": "EC", "crv": "P-256", "kid": id, "x": b64(point[1:33]), "y": b64(point[33:])}
	case ed25519.PublicKey:
		return map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": id, "x": b64(k)}
	}
	t.Fatalf("no key: %T", key)
	return nil
}

func jwks(t testing.TB, keys ...map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

type publisher struct {
	*httptest.Server
	mu     sync.Mutex // guards the following fields
	answer http.HandlerFunc
	calls  int
}

func newPublisher(t testing.TB, document []byte) *publisher {
	t.Helper()
	p := &publisher{}
	p.publish(document)
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.calls++
		answer := p.answer
		p.mu.Unlock()
		answer(w, r)
	}))
	p.Config.ErrorLog = log.New(io.Discard, "", 0) // Callers go when a test ends.
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

func (p *publisher) serve(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *publisher) publish(document []byte) {
	p.serve(func(w http.ResponseWriter, _ *http.Request) { w.Write(document) })
}

func (p *publisher) called() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// transport returns a transport that trusts the publisher and keeps no idle
// connections.
func (p *publisher) transport() http.RoundTripper {
	t := p.Client().Transport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	return t
}

func own(url string) Issuer {
	return Issuer{
		Issuer: iss, Audience: []string{"relay"}, JWKSURL: url,
		ProjectClaim: "project", EnvironmentClaim: "environment",
	}
}

// newTestVerifier returns a verifier that runs until the test ends. Its intervals are
// long, so that only the test causes fetches.
func (p *publisher) newTestVerifier(t testing.TB, change func(*Config)) *Verifier {
	t.Helper()
	cfg := Config{
		Issuers: []Issuer{own(p.URL)}, Transport: p.transport(),
		TTL: time.Hour, MinInterval: time.Hour, RetryAfter: time.Hour, MaxRetryAfter: time.Hour, Wait: 20 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, v)
	return v
}

func run(t testing.TB, v *Verifier) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() { v.Run(t.Context()) })
	t.Cleanup(running.Wait)
}

func good() jwt.MapClaims {
	now := time.Now()
	return jwt.MapClaims{
		"iss": iss, "aud": "relay", "sub": "anna", "project": "game", "environment": "live",
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// with returns the claims with one of them changed, or removed if value is nil.
func with(claim string, value any) jwt.MapClaims {
	c := maps.Clone(good())
	c[claim] = value
	if value == nil {
		delete(c, claim)
	}
	return c
}

// sign returns a token, without kid if id is empty.
func sign(t testing.TB, method jwt.SigningMethod, id string, key any, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	if id != "" {
		token.Header["kid"] = id
	}
	return signed(t, token, key)
}

func signed(t testing.TB, token *jwt.Token, key any) string {
	t.Helper()
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
