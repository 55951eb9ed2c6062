package identity

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func from(t testing.TB, v *Verifier, issuer string) error {
	t.Helper()
	_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodES256, "k", ecKey, with("iss", issuer)))
	return err
}

func rule(issuer, url string) Issuer {
	i := own(url)
	i.Issuer = issuer
	return i
}

// TestActivate checks that a kept issuer keeps its keys without a fetch, that a removed
// one is refused at once and not fetched again, and that a new one is fetched.
func TestActivate(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "k", ecKey)))
	stays, leaves, comes := p.URL+"/stays", p.URL+"/leaves", p.URL+"/comes"
	before := p.newTestVerifier(t, func(c *Config) {
		c.Issuers = []Issuer{rule("stays", stays), rule("leaves", leaves)}
	})
	for _, issuer := range []string{"stays", "leaves"} {
		if err := from(t, before, issuer); err != nil {
			t.Fatalf("%s: %v", issuer, err)
		}
	}
	after, err := before.With([]Issuer{rule("stays", stays), rule("comes", comes)})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.called(); n != 2 {
		t.Errorf("%d fetches before it takes over, want 2", n)
	}
	if err := from(t, after, "stays"); err != nil {
		t.Errorf("the keys that were there: %v", err)
	}
	after.Activate()
	for issuer, want := range map[string]error{"stays": nil, "comes": nil, "leaves": ErrIssuer} {
		if err := from(t, after, issuer); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", issuer, err, want)
		}
	}
	if n, st := p.called(), after.Stats(); n != 3 || st.Fetches != 3 || st.Keyless != 0 {
		t.Errorf("%d fetches, want 3: %+v", n, st)
	}
}

// TestActivateStops checks that the fetch of a removed issuer is cancelled.
func TestActivateStops(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, nil)
	asked, gone := make(chan struct{}), make(chan struct{})
	p.serve(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	v := p.newTestVerifier(t, func(c *Config) { c.FetchTimeout = time.Hour })
	<-asked
	next, err := v.With(nil)
	if err != nil {
		t.Fatal(err)
	}
	next.Activate()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("it is still asked")
	}
}

// TestWithInvalidRules checks that With changes nothing if a rule is invalid.
func TestWithInvalidRules(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "k", ecKey)))
	v := p.newTestVerifier(t, nil)
	next, err := v.With([]Issuer{own(p.URL), {Issuer: "x"}})
	if next != nil || !errors.Is(err, ErrConfig) {
		t.Errorf("%v, %v", next, err)
	}
	if err := from(t, v, iss); err != nil {
		t.Errorf("the one before: %v", err)
	}
}

// TestNoIssuers checks that a verifier without issuers refuses all tokens until another
// one is activated while it runs.
func TestNoIssuers(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "k", ecKey)))
	v := p.newTestVerifier(t, func(c *Config) { c.Issuers = nil })
	if err := from(t, v, iss); !errors.Is(err, ErrIssuer) {
		t.Errorf("without issuers: %v", err)
	}
	next, err := v.With([]Issuer{own(p.URL)})
	if err != nil {
		t.Fatal(err)
	}
	next.Activate()
	if err := from(t, next, iss); err != nil {
		t.Errorf("with one: %v", err)
	}
}

// TestActivateConcurrently checks that tokens of an issuer that is always kept stay
// valid while verifiers are activated concurrently.
func TestActivateConcurrently(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "k", ecKey)))
	both := []Issuer{rule("stays", p.URL+"/stays"), rule("moves", p.URL+"/moves")}
	v := p.newTestVerifier(t, func(c *Config) { c.Issuers, c.Wait = both, 20*time.Second })
	stays := sign(t, jwt.SigningMethodES256, "k", ecKey, with("iss", "stays"))
	moves := sign(t, jwt.SigningMethodES256, "k", ecKey, with("iss", "moves"))
	var mu sync.Mutex // guards v
	current := func() *Verifier {
		mu.Lock()
		defer mu.Unlock()
		return v
	}
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 50 {
				v := current()
				if _, err := v.Verify(t.Context(), stays); err != nil {
					t.Errorf("the kept issuer: %v", err)
				}
				_, err := v.Verify(t.Context(), moves)
				if err != nil && !errors.Is(err, ErrIssuer) && !errors.Is(err, ErrKeysUnavailable) {
					t.Errorf("the issuer that comes and goes: %v", err)
				}
			}
		})
	}
	for i := range 20 {
		next, err := current().With(both[:1+i%2])
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		v = next
		mu.Unlock()
		next.Activate()
	}
	callers.Wait()
}
