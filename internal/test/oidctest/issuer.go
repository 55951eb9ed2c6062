// Package oidctest is an issuer of OpenID Connect for tests.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer is an issuer that asks for no password. Its fields may be changed between two
// sign-ins.
type Issuer struct {
	*httptest.Server
	// Claims are those of the next person, besides the usual ones; they may replace these.
	Claims map[string]any
	// Key signs.
	Key *ecdsa.PrivateKey

	t      testing.TB
	public any // that it publishes

	mu    sync.Mutex            // guards the following field
	codes map[string]url.Values // parameters of the authorization, by code
}

// New returns an issuer that ends with the test.
func New(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t, Key: NewKey(t), codes: map[string]url.Values{}}
	i.public = i.Key.Public()
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		url := "http://" + r.Host
		answer(w, map[string]any{
			"issuer": url, "authorization_endpoint": url + "/authorize", "token_endpoint": url + "/token",
			"jwks_uri": url + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.public, KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	})
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		back := url.Values{"code": {i.Code(q)}, "state": {q.Get("state")}}
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", i.token)
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

// NewKey returns a key.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Code returns a code, good once, for the parameters of an authorization.
func (i *Issuer) Code(asked url.Values) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	code := rand.Text()
	i.codes[code] = asked
	return code
}

func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	asked, ok := i.codes[r.FormValue("code")]
	delete(i.codes, r.FormValue("code"))
	i.mu.Unlock()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") {
		http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		return
	}
	answer(w, map[string]any{"access_token": "SECRET", "token_type": "Bearer", "id_token": i.idToken("http://"+r.Host, asked.Get("nonce"))})
}

func (i *Issuer) idToken(issuer, nonce string) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.Key}, (&jose.SignerOptions{}).WithHeader("kid", "k"))
	if err != nil {
		i.t.Error(err)
		return ""
	}
	claims := map[string]any{
		"iss": issuer, "aud": "ferry", "sub": "subject-7", "nonce": nonce,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	for name, value := range i.Claims {
		claims[name] = value
	}
	content, err := json.Marshal(claims)
	if err != nil {
		i.t.Error(err)
		return ""
	}
	signed, err := signer.Sign(content)
	if err != nil {
		i.t.Error(err)
		return ""
	}
	text, _ := signed.CompactSerialize() // It has one signature.
	return text
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // An error means that the client has disconnected.
}
