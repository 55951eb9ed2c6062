package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/server/players/outcall"
)

// maxJWKS bounds a JWKS document in bytes.
const maxJWKS = 256 << 10

// source fetches the keys of an issuer and keeps those of the last successful fetch.
// Only its run goroutine fetches.
type source struct {
	url      string
	endpoint *outcall.Endpoint
	cfg      Config
	pool     *pool         // for the counters
	wake     chan struct{} // has room for one value; requests a fetch

	current atomic.Pointer[keySet] // nil before the first successful fetch

	mu         sync.Mutex    // guards the following fields; not held during calls
	inProgress chan struct{} // closed at the end of the requested or running fetch; nil without one
	lastForced time.Time     // the last fetch because of an unknown key
	retryAt    time.Time     // after a failure: no fetch before that time
	failures   int           // failed fetches since the last successful one
}

func newSource(url string, cfg Config, p *pool) (*source, error) {
	e, err := outcall.New(outcall.Config{URL: url, Timeout: cfg.FetchTimeout, Transport: cfg.Transport})
	if err != nil {
		return nil, fmt.Errorf("%w: jwks_url: %w", ErrConfig, err)
	}
	return &source{url: url, endpoint: e, cfg: cfg, pool: p, wake: make(chan struct{}, 1)}, nil
}

func (s *source) run(ctx context.Context) {
	defer s.endpoint.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		s.markStarted()
		keys, err := s.fetch(ctx)
		timer.Reset(s.complete(ctx, keys, err))
	}
}

// markStarted does nothing if requestFetch has recorded the fetch already.
func (s *source) markStarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.wake:
	default:
	}
	if s.inProgress == nil {
		s.inProgress = make(chan struct{})
	}
}

// complete ends a fetch for the goroutines that wait for it, and returns the time until
// the next one. The keys become current together with the end of the fetch, so that
// requestFetch can tell whether a token was checked with the latest ones.
func (s *source) complete(ctx context.Context, keys *keySet, err error) time.Duration {
	if err != nil && ctx.Err() == nil {
		s.pool.failures.Add(1)
		effect := "its tokens are refused until that works"
		if s.current.Load() != nil {
			effect = "the previous ones stay in use"
		}
		s.cfg.Logger.Warn("the keys of an issuer cannot be fetched: "+effect, "host", s.endpoint.Host(), "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.current.Store(keys)
		s.failures = 0
	}
	close(s.inProgress)
	s.inProgress = nil
	if err == nil {
		return jitter(s.cfg.TTL)
	}
	wait := jitter(min(s.cfg.RetryAfter<<min(s.failures, 10), s.cfg.MaxRetryAfter))
	s.failures++
	s.retryAt = s.cfg.Now().Add(wait)
	return wait
}

// jitter returns d plus or minus up to a tenth, so that the processes of a fleet do not
// fetch at the same time.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

func (s *source) fetch(ctx context.Context) (*keySet, error) {
	s.pool.fetches.Add(1)
	a, err := s.endpoint.Get(ctx, "application/jwk-set+json, application/json", maxJWKS)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("call %s: status %d", s.endpoint.Host(), a.Status)
	}
	set, err := parseKeys(a.Body)
	if err != nil {
		return nil, fmt.Errorf("the document of %s %w", s.endpoint.Host(), err)
	}
	for _, why := range set.skipped {
		if errors.Is(why, errField) { // The others are for another use or of another kind.
			s.cfg.Logger.Warn("a key of an issuer cannot be used, and tokens that name it are refused", "host", s.endpoint.Host(), "error", why)
		}
	}
	if s.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		s.cfg.Logger.Debug("fetched the keys of an issuer", "host", s.endpoint.Host(),
			"keys", len(set.keys), "skipped", errors.Join(set.skipped...))
	}
	return set, nil
}

// An unknown key causes a fetch if MinInterval permits one.
func (s *source) find(ctx context.Context, id, alg string) (any, error) {
	checked := s.current.Load()
	key, err := s.lookup(checked, id, alg)
	if err == nil || errors.Is(err, ErrAlgorithm) || !s.refresh(ctx, checked) {
		return key, err
	}
	return s.lookup(s.current.Load(), id, alg)
}

// lookup returns a key of set, which may be nil. While fetches fail, an unknown key may
// be one that the issuer has published since.
func (s *source) lookup(set *keySet, id, alg string) (any, error) {
	if set == nil {
		return nil, ErrKeysUnavailable
	}
	key, known := set.find(id, alg)
	switch {
	case key != nil:
		return key, nil
	case known:
		return nil, fmt.Errorf("%w with that key", ErrAlgorithm)
	case s.failing():
		return nil, ErrKeysUnavailable
	}
	return nil, ErrKey
}

func (s *source) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures > 0
}

// refresh waits for keys other than checked: for the end of a fetch, which it requests
// if none is in progress. It reports whether a fetch has ended.
func (s *source) refresh(ctx context.Context, checked *keySet) bool {
	over, ok := s.requestFetch(checked)
	if !ok {
		return false
	}
	limit := time.NewTimer(s.cfg.Wait)
	defer limit.Stop()
	select {
	case <-over:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}

// requestFetch returns a channel that is closed at the end of the fetch in progress or
// of a new one, or already if a fetch has replaced checked. It returns false if it is too
// early for a new one.
func (s *source) requestFetch(checked *keySet) (over <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inProgress != nil {
		return s.inProgress, true
	}
	if s.current.Load() != checked {
		ended := make(chan struct{})
		close(ended)
		return ended, true
	}
	now := s.cfg.Now()
	if now.Before(s.retryAt) || !s.lastForced.IsZero() && now.Sub(s.lastForced) < s.cfg.MinInterval {
		return nil, false
	}
	if checked != nil { // the first fetch does not count
		s.lastForced = now
	}
	s.inProgress = make(chan struct{})
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.inProgress, true
}

// pool runs the sources of the active verifier. Sources that the next active verifier
// shares continue to run.
type pool struct {
	started sync.Once
	changed chan struct{} // has room for one value; sources has changed

	fetches, failures atomic.Uint64 // of all sources since the start

	mu      sync.Mutex // guards sources; not held during calls
	sources map[string]*source
}

func newPool() *pool { return &pool{changed: make(chan struct{}, 1)} }

// setSources does not modify the map.
func (p *pool) setSources(sources map[string]*source) {
	p.mu.Lock()
	p.sources = sources
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *pool) active() map[string]*source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources
}

// run returns when no source runs.
func (p *pool) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	stops := make(map[*source]context.CancelFunc)
	for {
		active := p.active()
		for s, stop := range stops {
			if active[s.url] != s {
				stop()
				delete(stops, s)
			}
		}
		for _, s := range active {
			if stops[s] == nil {
				life, stop := context.WithCancel(ctx)
				stops[s] = stop
				running.Go(func() { s.run(life) })
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return
		case <-p.changed:
		}
	}
}
