package httpapi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// devTenant is the tenant of anonymous callers.
func devTenant() alloc.Tenant { return alloc.Tenant{Project: "dev", Environment: "dev"} }

// principal is who is calling.
type principal struct {
	// name is what requests are counted under. Names of tokens and of
	// addresses begin differently, so that they never meet.
	name      string
	tenant    alloc.Tenant
	player    string
	kind      Kind
	anonymous bool
}

// Identity is who holds a bearer token, as Config.Authenticate found out.
type Identity struct {
	// Tenant is whose project and environment the caller is in. Both names are
	// required.
	Tenant alloc.Tenant
	// Player is the name of the player, or of the backend. It is required.
	Player string
	Kind   Kind
}

// principal returns the caller as it is counted. Static tokens and those that
// Config.Authenticate knows are one principal if they name the same player.
func (i Identity) principal() principal {
	name := []string{"token", i.Kind.String(), i.Tenant.Project, i.Tenant.Environment, i.Player}
	return principal{name: strings.Join(name, "\x00"), tenant: i.Tenant, player: i.Player, kind: i.Kind}
}

// Errors of Config.Authenticate that callers are told of, with errors.Is.
var (
	// ErrTokenExpired: a new token will do; 401 says so.
	ErrTokenExpired = errors.New("httpapi: token has expired")
	// ErrCannotTell: nobody can say now whether the token is good; 503.
	ErrCannotTell = errors.New("httpapi: nobody can say now whether the token is good")
)

// errNoToken is for a request without one bearer token.
var errNoToken = errors.New("httpapi: no bearer token")

// errUnknownToken is for a token that is none of ours.
var errUnknownToken = errors.New("httpapi: unknown token")

// errForged wraps why a token was refused after it had to be looked at, which
// costs more than to make it up.
var errForged = errors.New("httpapi: token was refused")

// identify finds out who is calling. If the address is the caller's own and too
// many bad tokens came from there, the error is the problem to answer with.
func (h *Handler) identify(r *http.Request, address netip.Prefix, own bool) (principal, error) {
	token, ok := bearer(r.Header)
	if !ok {
		return principal{}, errNoToken
	}
	if p, ok := h.tokens.find(token); ok {
		return p, nil
	}
	if h.cfg.Authenticate == nil {
		return principal{}, errUnknownToken
	}
	if own {
		if problem := h.forger(address); problem != nil {
			return principal{}, problem
		}
	}
	who, err := h.cfg.Authenticate(r.Context(), token)
	if err != nil {
		return principal{}, fmt.Errorf("%w: %w", errForged, err)
	}
	return who.principal(), nil
}

// unauthorized returns the problem of a caller that nobody knows. A caller
// without a token is told the scheme and no error (RFC 6750, 3.1).
func unauthorized(err error) *api.Problem {
	if errors.Is(err, ErrCannotTell) {
		return later(statusProblem(http.StatusServiceUnavailable, "tokens cannot be checked now"), retryUnavailable)
	}
	return statusProblem(http.StatusUnauthorized, "a valid bearer token is required")
}

// challenge returns the header that goes with a 401.
func challenge(err error) string {
	switch {
	case errors.Is(err, errNoToken):
		return "Bearer"
	case errors.Is(err, ErrTokenExpired):
		return `Bearer error="invalid_token", error_description="the token has expired"`
	}
	return `Bearer error="invalid_token"`
}

// caller returns the principal as the service knows it. An anonymous caller
// cannot prove that it made an allocation, so it may name any of its tenant's
// where ownership counts.
func (p principal) caller(c callName) alloc.Caller {
	server := p.kind == KindServer || (p.anonymous && c == callJoinCode)
	return alloc.Caller{Tenant: p.tenant, Player: p.player, Server: server}
}

// digest is how a secret is kept and looked up: the time of a look-up tells
// something about digests, which nobody can choose, and nothing about secrets.
type digest [sha256.Size]byte

// tokenTable finds the principal of a secret. It does not change after
// newTokenTable.
type tokenTable map[digest]principal

func newTokenTable(tokens []Token) (tokenTable, error) {
	table := make(tokenTable, len(tokens))
	for i, t := range tokens {
		if err := t.validate(); err != nil {
			return nil, fmt.Errorf("httpapi: token %d: %w", i, err)
		}
		key := digest(sha256.Sum256([]byte(t.Secret)))
		if _, ok := table[key]; ok {
			return nil, fmt.Errorf("httpapi: token %d: %w", i, ErrDuplicate)
		}
		table[key] = Identity{Tenant: t.tenant(), Player: t.player(), Kind: t.Kind}.principal()
	}
	return table, nil
}

// find returns the principal of a token.
func (t tokenTable) find(secret string) (principal, bool) {
	p, ok := t[digest(sha256.Sum256([]byte(secret)))]
	return p, ok
}

// bearer returns the token of the only Authorization header (RFC 6750, 2.1).
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if !ok || token == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return token, true
}

// anonymousFrom returns a player that has never called before, counted under
// its address.
func anonymousFrom(address netip.Prefix) principal {
	return principal{
		name:      "address\x00" + address.String(),
		tenant:    devTenant(),
		player:    "anonymous-" + uuid.NewString(),
		kind:      KindPlayer,
		anonymous: true,
	}
}
