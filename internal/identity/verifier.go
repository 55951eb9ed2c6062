package identity

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/alloc"
)

// MaxToken is the largest token in bytes that is looked at.
const MaxToken = 8 << 10

// leeway is how far the clocks of issuers may be off.
const leeway = 60 * time.Second

// Identity is who holds a token.
type Identity struct {
	Tenant alloc.Tenant
	// Player names the player within the tenant.
	Player string
	// Server marks a backend.
	Server bool
}

// Verifier turns tokens into identities. It does not change: who wants other
// issuers makes another one with [Verifier.With]. Its methods may be called from
// several goroutines; what changes has a lock in each source.
type Verifier struct {
	cfg     Config
	issuers map[string]*issuer
	sources map[string]*source // by URL
	parser  *jwt.Parser
	pool    *pool // shared with those that it took over from
}

// issuer is whom we trust: its keys, and its rules in the order of the
// configuration.
type issuer struct {
	secret []byte  // where there is no source
	source *source // nil: secret
	rules  []Issuer
}

// New returns a verifier, or an error that wraps ErrConfig and names the rule by
// its index. Without issuers it refuses every token. It fetches nothing before
// Run.
func New(cfg Config) (*Verifier, error) {
	cfg.setDefaults()
	v := &Verifier{cfg: cfg, pool: newPool()}
	v, err := v.With(cfg.Issuers)
	if err == nil {
		v.Activate()
	}
	return v, err
}

// With returns a verifier that trusts these issuers and is like v otherwise, or
// an error as New does. Keys that v has fetched from a URL of theirs are its keys
// too. Nothing else is fetched before Activate, and v does not change.
func (v *Verifier) With(issuers []Issuer) (*Verifier, error) {
	next := &Verifier{
		cfg: v.cfg, pool: v.pool, issuers: make(map[string]*issuer), sources: make(map[string]*source),
		parser: jwt.NewParser(
			jwt.WithValidMethods(permitted), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
			jwt.WithLeeway(leeway), jwt.WithTimeFunc(v.cfg.Now), jwt.WithStrictDecoding(),
		),
	}
	next.cfg.Issuers = nil // Their secrets are kept once.
	for i, rule := range issuers {
		if err := next.trust(rule, v.sources); err != nil {
			return nil, fmt.Errorf("issuers[%d]: %w", i, err)
		}
	}
	return next, nil
}

// Activate has Run, that of v or of any it was made of, keep the keys of v fresh
// and of no other. What another one verifies at that moment ends as it began.
func (v *Verifier) Activate() { v.pool.enforce(v.sources) }

// trust adds a rule. Sources that are there already are taken from former.
func (v *Verifier) trust(rule Issuer, former map[string]*source) (err error) {
	if err := rule.validate(); err != nil {
		return err
	}
	known, ok := v.issuers[rule.Issuer]
	if !ok {
		known = &issuer{secret: rule.HS256Key}
		if rule.JWKSURL != "" {
			known.source, err = v.sourceOf(rule.JWKSURL, former)
		}
		v.issuers[rule.Issuer] = known
	} else if first := known.rules[0]; first.JWKSURL != rule.JWKSURL || subtle.ConstantTimeCompare(first.HS256Key, rule.HS256Key) != 1 {
		err = fmt.Errorf("%w: another rule of this issuer has other keys", ErrConfig)
	}
	known.rules = append(known.rules, rule)
	return err
}

func (v *Verifier) sourceOf(url string, former map[string]*source) (s *source, err error) {
	if s, ok := v.sources[url]; ok {
		return s, nil
	}
	s, ok := former[url]
	if !ok {
		s, err = newSource(url, v.cfg, v.pool)
	}
	if err == nil {
		v.sources[url] = s
	}
	return s, err
}

// Run keeps the keys of issuers fresh until ctx ends: those of v, and of whoever
// takes over. No goroutine is left when it returns. It does its work once: a
// second call, of any of them, returns at once.
func (v *Verifier) Run(ctx context.Context) {
	v.pool.started.Do(func() { v.pool.run(ctx) })
}

// Verify returns who holds a token. It waits for keys that are being fetched, up
// to Config.Wait and as long as ctx lets it. The error says why not, with one of
// the package's errors, for a log; a caller should be told of ErrExpired and of
// ErrKeysUnavailable and no more.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > MaxToken {
		return Identity{}, fmt.Errorf("%w: it has more than %d bytes", ErrMalformed, MaxToken)
	}
	var trusted *issuer
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (key any, err error) {
		trusted, key, err = v.keyOf(ctx, t)
		return key, err
	})
	if err != nil {
		return Identity{}, explain(err)
	}
	return trusted.identify(claims)
}

// keyOf returns the key that a token has to be signed with. Nothing of the token
// is believed yet.
func (v *Verifier) keyOf(ctx context.Context, t *jwt.Token) (*issuer, any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, nil, fmt.Errorf("%w: it has extensions that have to be understood", ErrMalformed)
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

// explain turns an error of package jwt into one of ours. Those of keyOf come
// back inside it.
func explain(err error) error {
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
