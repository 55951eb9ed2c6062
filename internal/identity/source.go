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

	"github.com/ferryrelay/ferry/internal/outcall"
)

// maxJWKS bounds a document of keys, in bytes.
const maxJWKS = 256 << 10

// source fetches the keys of an issuer and keeps the last good ones. Its run is
// the only goroutine that fetches.
type source struct {
	url      string
	endpoint *outcall.Endpoint
	cfg      Config
	pool     *pool         // counts
	wake     chan struct{} // of one place: somebody wants the keys anew

	current atomic.Pointer[keySet] // nil before the first good fetch

	mu       sync.Mutex    // guards the following fields; held for no call
	underWay chan struct{} // closed when the fetch that is under way, or has been asked for, is over; nil without one
	asked    time.Time     // when an unknown key last had them fetched
	rest     time.Time     // after a failure: not again before
	failed   int           // fetches that failed since the last good one
}

func newSource(url string, cfg Config, p *pool) (*source, error) {
	e, err := outcall.New(outcall.Config{URL: url, Timeout: cfg.FetchTimeout, Transport: cfg.Transport})
	if err != nil {
		return nil, fmt.Errorf("%w: jwks_url: %w", ErrConfig, err)
	}
	return &source{url: url, endpoint: e, cfg: cfg, pool: p, wake: make(chan struct{}, 1)}, nil
}

// run fetches until ctx ends.
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
		s.begin()
		timer.Reset(s.finish(ctx, s.fetch(ctx)))
	}
}

// begin says that a fetch is under way, if nobody who asked for it has.
func (s *source) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.wake:
	default:
	}
	if s.underWay == nil {
		s.underWay = make(chan struct{})
	}
}

// finish lets everybody go who waits for the fetch, and returns the time until
// the next one.
func (s *source) finish(ctx context.Context, err error) time.Duration {
	if err != nil && ctx.Err() == nil {
		s.pool.failures.Add(1)
		s.cfg.Logger.Warn("the keys of an issuer cannot be fetched: those that were there stay in force",
			"host", s.endpoint.Host(), "known", s.current.Load() != nil, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.underWay)
	s.underWay = nil
	if err == nil {
		s.failed = 0
		return spread(s.cfg.TTL)
	}
	wait := spread(min(s.cfg.RetryAfter<<min(s.failed, 10), s.cfg.MaxRetryAfter))
	s.failed++
	s.rest = s.cfg.Now().Add(wait)
	return wait
}

// spread returns d, a tenth less or more, so that the processes of a fleet do
// not all ask at once.
func spread(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

func (s *source) fetch(ctx context.Context) error {
	s.pool.fetches.Add(1)
	a, err := s.endpoint.Get(ctx, "application/jwk-set+json, application/json", maxJWKS)
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return fmt.Errorf("call %s: status %d", s.endpoint.Host(), a.Status)
	}
	set, err := parseKeys(a.Body)
	if err != nil {
		return fmt.Errorf("what %s sends %w", s.endpoint.Host(), err)
	}
	if s.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		s.cfg.Logger.Debug("fetched the keys of an issuer", "host", s.endpoint.Host(),
			"keys", len(set.keys), "skipped", errors.Join(set.skipped...))
	}
	s.current.Store(set)
	return nil
}

// find returns the key of a token. An unknown one has the keys fetched, if that
// is permitted by now.
func (s *source) find(ctx context.Context, id, alg string) (any, error) {
	key, err := s.look(id, alg)
	if err == nil || errors.Is(err, ErrAlgorithm) || !s.refresh(ctx) {
		return key, err
	}
	return s.look(id, alg)
}

// look looks among the keys that are there. As long as fetches fail, an unknown
// key may be one that the issuer has and we have not.
func (s *source) look(id, alg string) (any, error) {
	set := s.current.Load()
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
	return s.failed > 0
}

// refresh waits for a fetch, and asks for one if none is under way. It reports
// whether one is over.
func (s *source) refresh(ctx context.Context) bool {
	over, ok := s.ask()
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

// ask returns when a fetch will be over, or false if there is none and it is too
// early for another.
func (s *source) ask() (over <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay != nil {
		return s.underWay, true
	}
	now := s.cfg.Now()
	if now.Before(s.rest) || !s.asked.IsZero() && now.Sub(s.asked) < s.cfg.MinInterval {
		return nil, false
	}
	if s.current.Load() != nil { // The first keys are wanted anyway.
		s.asked = now
	}
	s.underWay = make(chan struct{})
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.underWay, true
}
