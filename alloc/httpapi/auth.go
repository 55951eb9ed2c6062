package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/base/hook"
)

func devTenant() alloc.Tenant { return alloc.Tenant{Project: "dev", Environment: "dev"} }

type principal struct {
	// name is the key of its rate limits. Names of tokens and of addresses have
	// different prefixes, so that they never collide.
	name      string
	tenant    alloc.Tenant
	player    string
	server    bool // a backend
	anonymous bool
	// individual: the player is one, not the holders of a static token, who may be many.
	individual bool
	tag        uint64
	regions    []string
}

// principalOf returns the principal of a caller whose token is valid.
func principalOf(c alloc.Caller) principal {
	kind := "player"
	if c.Server {
		kind = "server"
	}
	name := []string{"token", kind, c.Tenant.Project, c.Tenant.Environment, c.Player}
	return principal{
		name: strings.Join(name, "\x00"), tenant: c.Tenant, player: c.Player, server: c.Server, tag: c.Tag, regions: c.Regions,
	}
}

// limitByNetwork gives the holders of a token that many players share limits of their own in each
// network, so that no one uses up those of the others.
func (p *principal) limitByNetwork(client netip.Prefix) {
	if !p.server && !p.individual {
		p.name += "\x00" + client.String()
	}
}

// Errors of Config.Authenticate and Config.Identify that change the answer. They may be wrapped.
var (
	// ErrTokenExpired: the token was valid and has expired; the 401 says so.
	ErrTokenExpired = errors.New("httpapi: token has expired")
	// ErrAuthUnavailable: the token cannot be checked now; the answer is 503.
	ErrAuthUnavailable = errors.New("httpapi: the token cannot be checked now")
)

// TokenError is an error of Config.Authenticate for a token that a trusted issuer has signed,
// and that lacks something. The answer and the log have the reason.
type TokenError struct{ Reason string }

// Error names the reason.
func (e TokenError) Error() string { return "httpapi: the token does not fit: " + e.Reason }

var errNoToken = errors.New("httpapi: no bearer token")

var errUnknownToken = errors.New("httpapi: unknown token")

// authenticate returns as an error the problem to answer with, if credentials may not be
// checked now because of the limits of checks.
func (h *Handler) authenticate(r *http.Request, address netip.Prefix) (principal, error) {
	p, err := h.authenticateToken(r, address)
	if h.cfg.Identify == nil || !errors.Is(err, errNoToken) && !errors.Is(err, errUnknownToken) {
		return p, err
	}
	if err := h.hooks.crossOrigin.Check(r); err != nil {
		return principal{}, fmt.Errorf("httpapi: not identified, since the page is of another site: %w", err)
	}
	return h.check(address, digest{}, &h.hooks.identify, func() (alloc.Caller, error) { return h.cfg.Identify(r) })
}

func (h *Handler) authenticateToken(r *http.Request, address netip.Prefix) (principal, error) {
	token, ok := bearerToken(r.Header)
	if !ok {
		return principal{}, errNoToken
	}
	key := digestOf(token)
	if p, ok := h.tokens[key]; ok {
		return p, nil
	}
	if h.cfg.Authenticate == nil {
		return principal{}, errUnknownToken
	}
	return h.check(address, key, &h.hooks.authenticate, func() (alloc.Caller, error) { return h.cfg.Authenticate(r.Context(), token) })
}

// check calls a function of the configuration that identifies a caller. The key is that of
// the token, zero if the identity is not that of a token.
func (h *Handler) check(address netip.Prefix, key digest, r *hook.Reporter, identify func() (alloc.Caller, error)) (principal, error) {
	if problem := h.limits.takeTokenCheck(address, key); problem != nil {
		return principal{}, problem
	}
	identity, err := h.hooks.identity(r, identify)
	switch {
	case errors.Is(err, ErrAuthUnavailable):
		return principal{}, err
	case err != nil:
		h.limits.countRejectedToken(address, key)
		return principal{}, err
	case key != digest{}:
		h.limits.countAcceptedToken(key, identity.Server)
	}
	p := principalOf(identity)
	p.individual = !identity.Server
	return p, nil
}

func authProblem(err error) *api.Problem {
	if errors.Is(err, ErrAuthUnavailable) {
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "tokens cannot be checked now"), retryUnavailable)
	}
	detail := "a valid bearer token is required"
	if wrong, ok := errors.AsType[TokenError](err); ok {
		detail = "the token is not accepted: " + wrong.Reason
	}
	return statusProblem(http.StatusUnauthorized, detail)
}

// challenge returns the WWW-Authenticate header of a 401. A request without a token
// gets the scheme and no error code (RFC 6750, 3.1).
func challenge(err error) string {
	switch {
	case errors.Is(err, errNoToken):
		return "Bearer"
	case errors.Is(err, ErrTokenExpired):
		return `Bearer error="invalid_token", error_description="the token has expired"`
	}
	if wrong, ok := errors.AsType[TokenError](err); ok {
		return `Bearer error="invalid_token", error_description="` + strings.Map(descriptionByte, wrong.Reason) + `"`
	}
	return `Bearer error="invalid_token"`
}

// descriptionByte replaces what an error_description may not contain (RFC 6750, 3).
func descriptionByte(r rune) rune {
	if r < ' ' || r > '~' || r == '"' || r == '\\' {
		return '_'
	}
	return r
}

// caller returns the principal as the service's caller. An anonymous caller cannot
// prove that an allocation is its own, so joincode and leave accept any of its tenant, and
// migrate any ticket of one that names no player.
func (p principal) caller(c callName) alloc.Caller {
	server := p.server || p.anonymous && (c == callJoinCode || c == callMigrate || c == callLeave)
	return alloc.Caller{
		Tenant: p.tenant, Player: p.player, Individual: p.individual, Tag: p.tag, Regions: p.regions, Server: server,
	}
}

// maxPlayerName is the largest length in bytes of a player's name in a request.
const maxPlayerName = 256

// The beginnings of the names of callers without one: the holders of a static token, and a caller without a
// token. No player is named so in a request.
const (
	tokenName     = "token-"
	anonymousName = "anonymous-"
)

func isPlayerName(name string) bool {
	return name != "" && len(name) <= maxPlayerName && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl) &&
		!strings.HasPrefix(name, tokenName) && !strings.HasPrefix(name, anonymousName)
}

// namePlayer makes the caller the player that a backend names, if it may.
func (r *request) namePlayer(name string) *api.Problem {
	p := &r.source.principal
	switch {
	case name == "":
		return nil
	case !p.server && !p.anonymous:
		return invalidMember("player", "is for a backend, whose token has the kind server")
	case !isPlayerName(name):
		return invalidMember("player", "is not a name of at most 256 bytes, or begins with token- or anonymous-")
	}
	r.caller.Player, r.caller.Individual = name, true
	return nil
}

// digest identifies a secret. The time of a map lookup depends on the digest, which
// an attacker cannot choose, and reveals nothing about the secret.
type digest [sha256.Size]byte

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

// tokenTable maps secrets to principals. It is immutable.
type tokenTable map[digest]principal

func newTokenTable(tokens []Token) (tokenTable, error) {
	table := make(tokenTable, len(tokens))
	var errs []error
	for i, t := range tokens {
		key, err := digestOf(t.Secret), t.validate()
		if _, twice := table[key]; err == nil && twice {
			err = errors.New("its secret is that of another token")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: tokens[%d]: %w", ErrConfig, i, err))
			continue
		}
		table[key] = principalOf(alloc.Caller{Tenant: t.tenant(), Player: t.PlayerName(), Server: t.Server, Regions: t.Regions})
	}
	return table, errors.Join(errs...)
}

// It is that of the only Authorization header (RFC 6750, 2.1).
func bearerToken(h http.Header) (string, bool) {
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

// anonymousPlayer is the beginning of a token by which an anonymous caller names itself. The
// syntax of bearer tokens has no colon, so no other token begins so.
const anonymousPlayer = "player:"

// anonymousPrincipal returns a new player whose rates are limited by its address, or the
// player that the token names.
func anonymousPrincipal(address netip.Prefix, header http.Header) principal {
	p := principal{
		name:      "address\x00" + address.String(),
		tenant:    devTenant(),
		player:    anonymousName + uuid.NewString(),
		anonymous: true,
	}
	token, _ := bearerToken(header)
	if name, ok := strings.CutPrefix(token, anonymousPlayer); ok && isPlayerName(name) {
		p.player, p.individual = name, true
	}
	return p
}

// The limits in bytes of a token's secret. A secret of the minimum length cannot be
// guessed; one of the maximum length fits the header limit of [NewServer].
const (
	minSecret = 16
	maxSecret = 4096
)

// Token is a static bearer token and its identity.
type Token struct {
	// Secret is the token itself, 16 to 4096 visible ASCII characters.
	Secret string
	// Project and Environment are the tenant. Both are required and have at most 56
	// bytes.
	Project, Environment string
	// Player is the name of the player; if empty, it is derived from the secret.
	Player string
	// Server marks the token of a backend, which owns all allocations of its tenant and has limits
	// of its own. The holder of another one owns only what it reserves.
	Server bool
	// Regions are those of alloc.Caller.
	Regions []string
}

// describe returns kind, tenant and player, and no secret.
func (t Token) describe() string {
	kind := "player"
	if t.Server {
		kind = "server"
	}
	return fmt.Sprintf("%s %s/%s %s", kind, t.Project, t.Environment, t.Player)
}

// Format writes kind, tenant and player for every verb, and no secret.
func (t Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, t.describe()) }

// LogValue returns what Format writes.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.describe()) }

func (t Token) tenant() alloc.Tenant {
	return alloc.Tenant{Project: t.Project, Environment: t.Environment}
}

func (t Token) validate() error {
	switch {
	case !validSecret(t.Secret):
		return errors.New("its secret is not 16 to 4096 visible ASCII characters")
	case t.Project == "" || t.Environment == "":
		return errors.New("project and environment are required")
	}
	return t.tenant().Validate()
}

func validSecret(s string) bool {
	if len(s) < minSecret || len(s) > maxSecret {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// PlayerName returns the name that allocations of the token's holders have: Player, or one that is
// derived from the secret.
func (t Token) PlayerName() string {
	if t.Player != "" {
		return t.Player
	}
	// A digest with a prefix, so that it is not the one in the table of tokens.
	sum := sha256.Sum256([]byte("ferry player\x00" + t.Secret))
	return tokenName + hex.EncodeToString(sum[:16])
}
