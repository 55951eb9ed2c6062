package identity

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func verifies(t testing.TB, v *Verifier, id string) error {
	t.Helper()
	_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodES256, id, ecKey, good()))
	return err
}

func knows(t *testing.T, v *Verifier, id string) {
	t.Helper()
	if err := verifies(t, v, id); err != nil {
		t.Fatal(err)
	}
}

// TestRotation checks that a new key is accepted with its first token, and that the old
// one is then refused.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "old", ecKey)))
	v := p.newTestVerifier(t, nil)
	knows(t, v, "old")
	p.publish(jwks(t, published(t, "new", ecKey)))
	if err := verifies(t, v, "old"); err != nil {
		t.Errorf("without a token of another key: %v", err)
	}
	if err := verifies(t, v, "new"); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
	if err := verifies(t, v, "old"); !errors.Is(err, ErrKey) {
		t.Errorf("a key that was withdrawn: %v", err)
	}
	if n := p.called(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
}

// TestStorm checks that many tokens with unknown keys, concurrent and in sequence,
// cause one fetch.
func TestStorm(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, nil)
	knows(t, v, "a")
	var all sync.WaitGroup
	var known atomic.Int64
	for i := range 20 {
		all.Go(func() {
			for j := range 50 {
				if err := verifies(t, v, fmt.Sprint("unknown-", i, j)); !errors.Is(err, ErrKey) {
					known.Add(1)
				}
			}
		})
	}
	all.Wait()
	if known.Load() != 0 {
		t.Errorf("%d of 1000 unknown keys were not reported as unknown", known.Load())
	}
	if n := p.called(); n != 2 {
		t.Errorf("%d fetches for 1000 unknown keys, want the first and one more", n)
	}
	if err := verifies(t, v, "a"); err != nil {
		t.Errorf("after the storm: %v", err)
	}
}

func TestWrongTypeFetchesNothing(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, nil)
	knows(t, v, "a")
	if _, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodRS256, "a", rsaKey, good())); !errors.Is(err, ErrAlgorithm) {
		t.Error(err)
	}
	if n := p.called(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// TestFailures checks that the last good keys stay in use whatever the publisher sends.
func TestFailures(t *testing.T) {
	t.Parallel()
	good := jwks(t, published(t, "a", ecKey), published(t, "b", rsaKey))
	weak := published(t, "a", smallRSA)
	for name, answer := range map[string]http.HandlerFunc{
		"cut off": func(w http.ResponseWriter, _ *http.Request) { w.Write(good[:len(good)/2]) },
		"cut off within its length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(good)))
			w.Write(good[:len(good)-3])
		},
		"no connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"error":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); w.Write(good) },
		"redirect":      func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"not found":     func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"empty":         func(http.ResponseWriter, *http.Request) {},
		"no keys":       func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"keys":[]}`)) },
		"weak keys":     func(w http.ResponseWriter, _ *http.Request) { w.Write(jwks(t, weak)) },
		"too large": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(append(bytes.Repeat([]byte(" "), maxJWKS), good...))
		},
		"two documents": func(w http.ResponseWriter, _ *http.Request) { w.Write(append(good, good...)) },
		"HTML":          func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>log in</html>")) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, good)
			v := p.newTestVerifier(t, nil)
			knows(t, v, "a")
			p.serve(answer)
			if err := verifies(t, v, "unknown"); !errors.Is(err, ErrKeysUnavailable) {
				t.Errorf("a key that may be new: %v", err)
			}
			if s := v.Stats(); s.Failures != 1 || s.Fetches != 2 || s.Keyless != 0 {
				t.Fatalf("%+v", s)
			}
			if err := verifies(t, v, "a"); err != nil {
				t.Errorf("with the last good keys: %v", err)
			}
		})
	}
}

// TestPublisherUnavailable checks that known keys stay in use without the publisher,
// and that a verifier without keys returns ErrKeysUnavailable.
func TestPublisherUnavailable(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, nil)
	knows(t, v, "a")
	p.Close()
	if err := verifies(t, v, "b"); !errors.Is(err, ErrKeysUnavailable) {
		t.Errorf("an unknown key: %v", err)
	}
	if err := verifies(t, v, "a"); err != nil {
		t.Errorf("with the last good keys: %v", err)
	}
	if s := v.Stats(); s.Documents != 1 || s.Keyless != 0 || s.Stale != 1 {
		t.Errorf("%+v, want keys of before", s)
	}
	late := p.newTestVerifier(t, nil)
	testkit.Eventually(t, "a failed fetch", func() bool { return late.Stats().Failures == 1 })
	for range 100 {
		if err := verifies(t, late, "a"); !errors.Is(err, ErrKeysUnavailable) {
			t.Errorf("without any key: %v", err)
		}
	}
	if s := late.Stats(); s.Fetches != 1 || s.Keyless != 1 || s.Stale != 0 {
		t.Errorf("%+v, want no fetch while it rests after a failure", s)
	}
}

// TestFetchIsRetried checks that failed fetches are repeated without further tokens.
func TestFetchIsRetried(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, nil)
	v := p.newTestVerifier(t, func(c *Config) { c.RetryAfter, c.MaxRetryAfter = time.Millisecond, 5*time.Millisecond })
	testkit.Eventually(t, "three failed fetches", func() bool { return v.Stats().Failures >= 3 })
	p.publish(jwks(t, published(t, "a", ecKey)))
	testkit.Eventually(t, "the keys", func() bool { return verifies(t, v, "a") == nil })
	testkit.Eventually(t, "fresh ones", func() bool { s := v.Stats(); return s.Documents == 1 && s.Keyless == 0 && s.Stale == 0 })
	if n := p.called(); v.Stats().Fetches < 4 || n < 4 {
		t.Errorf("%d fetches", n)
	}
}

// TestKeysExpire: keys are fetched again after TTL, so that a withdrawn key expires.
func TestKeysExpire(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, func(c *Config) { c.TTL = 2 * time.Millisecond })
	if err := verifies(t, v, "a"); err != nil {
		t.Fatal(err)
	}
	p.publish(jwks(t, published(t, "b", ecKey)))
	testkit.Eventually(t, "a withdrawn key to be unknown", func() bool { return errors.Is(verifies(t, v, "a"), ErrKey) })
}

// TestWaitIsBounded checks that a token waits no longer than Wait for a publisher that
// does not answer, with one fetch in progress.
func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, nil)
	release := make(chan struct{})
	p.serve(func(http.ResponseWriter, *http.Request) { <-release })
	v := p.newTestVerifier(t, func(c *Config) { c.Wait, c.FetchTimeout = time.Millisecond, time.Hour })
	defer close(release)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := verifies(t, v, "a"); !errors.Is(err, ErrKeysUnavailable) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait() // Without the bound it would wait for release.
	testkit.Eventually(t, "the fetch", func() bool { return p.called() == 1 })
	if s := v.Stats(); s.Fetches != 1 {
		t.Errorf("%+v", s)
	}
}

// TestSharedKeys checks that issuers and rules with one URL share one fetch.
func TestSharedKeys(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, func(c *Config) {
		staging, other := own(p.URL), own(p.URL)
		c.Issuers[0].Environment, staging.Audience, other.Issuer = "live", []string{"staging"}, iss+"/2"
		c.Issuers = append(c.Issuers, staging, other)
	})
	for name, c := range map[string]struct {
		claims jwt.MapClaims
		want   string // environment
	}{
		"first rule":               {good(), "live"},
		"second rule":              {with("aud", "staging"), "live"},
		"first rule's environment": {with("environment", "test"), ""},
		"the other issuer":         {with("iss", iss+"/2"), "live"},
		"none of its audiences":    {with("aud", "elsewhere"), ""},
		"an issuer with no rule":   {with("iss", iss+"/3"), ""},
		"both rules' audiences":    {with("aud", []string{"staging", "relay"}), "live"},
		"the other one's audience": {with("iss", strings.ToUpper(iss)), ""},
	} {
		id, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodES256, "a", ecKey, c.claims))
		if id.Tenant.Environment != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	if n := p.called(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// TestRequestFetch checks that a token that was checked before a fetch ended is checked
// again, and causes no further fetch.
func TestRequestFetch(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "a", ecKey)))
	v := p.newTestVerifier(t, nil)
	knows(t, v, "a")
	for _, s := range v.pool.active() {
		over, ok := s.requestFetch(nil) // The lookup found no keys before the first fetch ended.
		if !ok {
			t.Fatal("too early")
		}
		<-over
	}
	if n := v.Stats().Fetches; n != 1 {
		t.Errorf("%d fetches", n)
	}
	knows(t, v, "a")
}
