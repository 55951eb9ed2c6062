package identity

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/golang-jwt/jwt/v5"
)

const (
	DefaultTTL           = 10 * time.Minute
	DefaultMinInterval   = 30 * time.Second
	DefaultWait          = 2 * time.Second
	DefaultFetchTimeout  = 5 * time.Second
	DefaultRetryAfter    = time.Second
	DefaultMaxRetryAfter = time.Minute
)

// Config configures a [Verifier]. A zero field selects its default.
type Config struct {
	Issuers []Issuer
	TTL     time.Duration
	// MinInterval is the minimum time between two fetches, per issuer, that tokens
	// with unknown keys cause.
	MinInterval  time.Duration
	Wait         time.Duration
	FetchTimeout time.Duration
	// RetryAfter is the wait after a failed fetch; it doubles after each further one
	// up to MaxRetryAfter.
	RetryAfter, MaxRetryAfter time.Duration
	Transport                 http.RoundTripper
	// Logger gets fetches and their errors, never tokens or secrets. Nil: no log.
	Logger *slog.Logger
	// Now is the clock of tokens and of intervals. Nil: time.Now.
	Now func() time.Time
}

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

// Errors of [Verifier.Verify]. Their texts hold nothing of the token.
var (
	// ErrMalformed: the token is not a JSON Web Token, is larger than MaxToken, or has
	// critical extensions.
	ErrMalformed = errors.New("identity: not a usable token")
	ErrAlgorithm = errors.New("identity: algorithm is not permitted")
	ErrIssuer    = errors.New("identity: unknown issuer")
	ErrKey       = errors.New("identity: unknown key")
	ErrSignature = errors.New("identity: wrong signature")
	ErrExpired   = errors.New("identity: token has expired")
	// ErrTime: the token is not valid yet, or does not expire.
	ErrTime = errors.New("identity: token is not valid now")
	// ErrRules: the token is for another audience, or lacks project, environment or player.
	ErrRules = errors.New("identity: token is not for this relay")
	// ErrKeysUnavailable: the keys of the issuer cannot be fetched at the moment, so the
	// token cannot be verified.
	ErrKeysUnavailable = errors.New("identity: the issuer's keys are not available")
)

var ErrConfig = errors.New("identity: bad configuration")

// MaxToken is the largest size of a token in bytes.
const MaxToken = 8 << 10

// leeway is the tolerated error of issuers' clocks.
const leeway = 60 * time.Second

type Identity struct {
	Tenant alloc.Tenant
	Player string
	Server bool
	// Regions is the claim regions: those in which the holder may have hosts. Empty: all of its project.
	Regions []string
}

// Verifier turns tokens into identities. It is immutable: [Verifier.With] returns one
// with other issuers. Its methods may be called concurrently.
type Verifier struct {
	cfg     Config
	issuers map[string]*issuer
	sources map[string]*source // by URL
	parser  *jwt.Parser
	pool    *pool // shared by all verifiers that With derives
}

// issuer has its rules in the order of the configuration.
type issuer struct {
	secret []byte  // nil if there is a source
	source *source // nil if there is a secret
	rules  []Issuer
}

// New fetches nothing before Run. Without issuers the verifier refuses every token.
// Errors wrap ErrConfig and have the index of the rule.
func New(cfg Config) (*Verifier, error) {
	cfg.setDefaults()
	v := &Verifier{cfg: cfg, pool: newPool()}
	v, err := v.With(cfg.Issuers)
	if err == nil {
		v.Activate()
	}
	return v, err
}

// With returns a verifier for other issuers, which reuses keys that v has fetched.
// It fetches nothing before Activate.
func (v *Verifier) With(issuers []Issuer) (*Verifier, error) {
	next := &Verifier{
		cfg: v.cfg, pool: v.pool, issuers: make(map[string]*issuer), sources: make(map[string]*source),
		parser: jwt.NewParser(append(v.timeRules(), signatureRules...)...),
	}
	next.cfg.Issuers = nil // The secrets are in issuers.
	var errs []error
	for i, rule := range issuers {
		if err := next.addRule(rule, v.sources); err != nil {
			errs = append(errs, fmt.Errorf("issuers[%d]: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return next, nil
}

// Activate makes Run keep the sources of v fresh, in place of those of the active
// verifier.
func (v *Verifier) Activate() { v.pool.setSources(v.sources) }

func (v *Verifier) addRule(rule Issuer, previous map[string]*source) (err error) {
	if err := rule.validate(); err != nil {
		return err
	}
	known, ok := v.issuers[rule.Issuer]
	if !ok {
		known = &issuer{secret: rule.HS256Key}
		if rule.JWKSURL != "" {
			known.source, err = v.addSource(rule.JWKSURL, previous)
		}
		v.issuers[rule.Issuer] = known
	} else if first := known.rules[0]; first.JWKSURL != rule.JWKSURL || subtle.ConstantTimeCompare(first.HS256Key, rule.HS256Key) != 1 {
		err = fmt.Errorf("%w: another rule of this issuer has other keys", ErrConfig)
	}
	known.rules = append(known.rules, rule)
	return err
}

func (v *Verifier) addSource(url string, previous map[string]*source) (s *source, err error) {
	if s, ok := v.sources[url]; ok {
		return s, nil
	}
	s, ok := previous[url]
	if !ok {
		s, err = newSource(url, v.cfg, v.pool)
	}
	if err == nil {
		v.sources[url] = s
	}
	return s, err
}

// Run keeps the keys of the active verifier's issuers fresh until ctx is done.
// Verifiers that With derives share one Run: further calls return at once.
func (v *Verifier) Run(ctx context.Context) {
	v.pool.started.Do(func() { v.pool.run(ctx) })
}

// Verify returns the identity of a token's holder. It waits for a fetch in progress, up
// to Config.Wait or until ctx is done. The error wraps one of the package's errors and
// is meant for a log; an API should expose ErrExpired and ErrKeysUnavailable only, and
// ErrRules with its text: the issuer has signed the token.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > MaxToken {
		return Identity{}, fmt.Errorf("%w: more than %d bytes", ErrMalformed, MaxToken)
	}
	var trusted *issuer
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (key any, err error) {
		trusted, key, err = v.keyOf(ctx, t)
		return key, err
	})
	if err != nil {
		return Identity{}, mapError(err)
	}
	return trusted.identify(claims)
}

// No claim is verified yet.
func (v *Verifier) keyOf(ctx context.Context, t *jwt.Token) (*issuer, any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, nil, fmt.Errorf("%w: it has critical extensions", ErrMalformed)
	}
	name, err := t.Claims.GetIssuer()
	if err != nil {
		return nil, nil, ErrIssuer
	}
	known, ok := v.issuers[name]
	if !ok {
		return nil, nil, ErrIssuer
	}
	alg := t.Method.Alg()
	if (alg == algHS256) != (known.source == nil) {
		return nil, nil, fmt.Errorf("%w for this issuer", ErrAlgorithm)
	}
	if known.source == nil {
		return known, known.secret, nil
	}
	id := ""
	if kid, ok := t.Header["kid"]; ok {
		if id, ok = kid.(string); !ok || id == "" || len(id) > maxKeyID {
			return nil, nil, ErrKey
		}
	}
	key, err := known.source.find(ctx, id, alg)
	return known, key, err
}

// signatureRules and timeRules are what the parser requires, and what Explain looks at one by one.
var signatureRules = []jwt.ParserOption{jwt.WithValidMethods(permitted), jwt.WithStrictDecoding()}

func (v *Verifier) timeRules() []jwt.ParserOption {
	return []jwt.ParserOption{jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(v.cfg.Now)}
}

func mapError(err error) error {
	for _, own := range []error{ErrMalformed, ErrAlgorithm, ErrIssuer, ErrKey, ErrKeysUnavailable} {
		if errors.Is(err, own) {
			return own
		}
	}
	for _, m := range []struct{ theirs, ours error }{
		{jwt.ErrTokenMalformed, ErrMalformed},
		{jwt.ErrTokenUnverifiable, ErrAlgorithm},
		{jwt.ErrTokenExpired, ErrExpired},
		{jwt.ErrTokenInvalidClaims, ErrTime},
	} {
		if errors.Is(err, m.theirs) {
			return m.ours
		}
	}
	return ErrSignature
}

// Stats are counts since the start, including issuers that are no longer trusted.
type Stats struct {
	// Fetches counts fetches of JWKS documents, Failures those that failed.
	Fetches, Failures uint64
	// Documents is the number of JWKS documents. Keyless were never fetched, Stale are
	// of an earlier fetch, because the last one failed.
	Documents, Keyless, Stale int
}

// Stats returns the counts. It may be called at any time.
func (v *Verifier) Stats() (all Stats) {
	all.Fetches, all.Failures = v.pool.fetches.Load(), v.pool.failures.Load()
	for _, s := range v.sources {
		all.Documents++
		switch {
		case s.current.Load() == nil:
			all.Keyless++
		case s.failing():
			all.Stale++
		}
	}
	return all
}
