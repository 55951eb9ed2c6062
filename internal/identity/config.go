package identity

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"
)

// The defaults of [Config].
const (
	DefaultTTL           = 10 * time.Minute
	DefaultMinInterval   = 30 * time.Second
	DefaultWait          = 2 * time.Second
	DefaultFetchTimeout  = 5 * time.Second
	DefaultRetryAfter    = time.Second
	DefaultMaxRetryAfter = time.Minute
)

// Config is what a [Verifier] is made of. Zero times stand for the defaults.
type Config struct {
	// Issuers are whom to trust, and for what.
	Issuers []Issuer
	// TTL is how long fetched keys are used before they are fetched again.
	TTL time.Duration
	// MinInterval is the least time between two fetches that tokens with
	// unknown keys cause, per issuer.
	MinInterval time.Duration
	// Wait bounds how long one token waits for keys that are being fetched.
	Wait time.Duration
	// FetchTimeout bounds one fetch.
	FetchTimeout time.Duration
	// RetryAfter is the wait after a first fetch that failed; it doubles with
	// each further one up to MaxRetryAfter.
	RetryAfter, MaxRetryAfter time.Duration
	// Transport replaces the way to the network, for tests. Nil: an own one.
	Transport http.RoundTripper
	// Logger hears of fetches. Nil: nobody. Tokens and secrets are never logged.
	Logger *slog.Logger
	// Now is the clock of tokens and of intervals. Nil: time.Now.
	Now func() time.Time
}

// setDefaults fills in what zero stands for.
func (c *Config) setDefaults() {
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	c.MinInterval = cmp.Or(c.MinInterval, DefaultMinInterval)
	c.Wait = cmp.Or(c.Wait, DefaultWait)
	c.FetchTimeout = cmp.Or(c.FetchTimeout, DefaultFetchTimeout)
	c.RetryAfter = cmp.Or(c.RetryAfter, DefaultRetryAfter)
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, DefaultMaxRetryAfter)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}
