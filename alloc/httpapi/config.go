package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// The requests per minute, principal and call when the configuration does not
// say. Sixty is the published limit of the real service (protocol.md 4.7).
const (
	DefaultPlayerPerMinute = 60
	DefaultServerPerMinute = 6000
)

// DefaultAddressPerMinute is how many requests per minute may come from one
// address when the configuration does not say (reliability-security.md 7.3).
const DefaultAddressPerMinute = 120

// The failed joins per minute and principal when the configuration does not
// say. Ten is many for somebody who types codes; a backend speaks for many,
// and the rate of its default is the one that join codes withstand anyway.
const (
	DefaultFailedJoinsPerMinute       = 10
	DefaultServerFailedJoinsPerMinute = 600
)

// maxPerMinute bounds all limits: a larger one limits nothing.
const maxPerMinute = 1e9

// Errors of [New] about the configuration as a whole.
var (
	// ErrNoService: Config.Service is nil.
	ErrNoService = errors.New("httpapi: no service")
	// ErrNoCredential: neither a token, nor somebody who knows tokens, nor
	// anonymous callers, so that nobody could call.
	ErrNoCredential = errors.New("httpapi: no token and no issuer is configured and anonymous callers are not let in")
	// ErrLimit: a limit that is negative or beyond reason.
	ErrLimit = errors.New("httpapi: a limit is negative or beyond reason")
	// ErrProxy: a trusted proxy that is no network.
	ErrProxy = errors.New("httpapi: a trusted proxy is not a valid prefix")
	// ErrOrigin: an allowed origin that no browser would send.
	ErrOrigin = errors.New("httpapi: not an origin such as https://game.example.org")
)

// Config says what a [Handler] serves and to whom.
type Config struct {
	// Service does the work. It is required.
	Service *alloc.Service
	// Tokens are the callers that are let in. At least one is required unless
	// Authenticate or Anonymous is set.
	Tokens []Token
	// Authenticate says who holds a token that is none of Tokens. Its error is
	// for the log, and must hold nothing of the token; what a caller is told is
	// said at ErrTokenExpired and ErrCannotTell. It is called from many goroutines,
	// and bounds what it does by itself. Nil: Tokens are all there are.
	Authenticate func(ctx context.Context, token string) (Identity, error)
	// Taker counts requests and failed joins of players for several processes
	// together, besides the counts of each. Nil: each process counts alone.
	Taker Taker
	// Anonymous lets callers in whose token is missing or unknown: each call is
	// a player of its own in project "dev", environment "dev". Unknown tokens
	// are let in too, since a game always sends the one of its own account.
	Anonymous bool
	// Unlimited switches off the limits of requests and of failed joins.
	Unlimited bool
	// Counts are those of the handler before, where this one takes its place. Nil:
	// counts begin with the handler.
	Counts *Counts
	// PlayerPerMinute is how many requests a player may make per minute and
	// call; 0 means 60.
	PlayerPerMinute int
	// ServerPerMinute is the same for a backend; 0 means 6000.
	ServerPerMinute int
	// AddressPerMinute is how many requests may come from one client address
	// per minute, of all calls and tokens together but those of backends; 0
	// means 120. An IPv6 address counts by its /56.
	AddressPerMinute int
	// FailedJoinsPerMinute is how many joins of one player, and how many from
	// one client address, may name no live code per minute, as many at once;
	// beyond that its joins pause. Others of the tenant notice nothing, but for
	// longer join codes (alloc.ServiceConfig.FailuresPerSecond). 0 means 10.
	FailedJoinsPerMinute int
	// ServerFailedJoinsPerMinute is the same for a backend, whose address does
	// not count; 0 means 600.
	ServerFailedJoinsPerMinute int
	// AllowOrigins are the web origins whose pages may call, such as
	// "https://game.example.org". Nil means "*", any; empty means none.
	AllowOrigins []string
	// TrustedProxies are the networks of reverse proxies whose X-Forwarded-For
	// is believed about a caller's address. Nil means none: then all callers
	// behind a proxy have the proxy's address, and share its limits.
	TrustedProxies []netip.Prefix
	// Logger gets one line per request at debug level and one per internal
	// error. Nil means no log. Tokens, keys, join codes and addresses are never
	// logged.
	Logger *slog.Logger
	// OnRequest is told about every request when it has been answered: the call
	// ("allocate", "joincode", "join", "regions", "openapi", "preflight" or
	// "other"), the status and the time it took. Nil is allowed. It is called
	// from many goroutines.
	OnRequest func(call string, status int, d time.Duration)
}

func (c Config) validate() error {
	switch {
	case c.Service == nil:
		return ErrNoService
	case len(c.Tokens) == 0 && c.Authenticate == nil && !c.Anonymous:
		return ErrNoCredential
	}
	for _, n := range []int{
		c.PlayerPerMinute, c.ServerPerMinute, c.AddressPerMinute,
		c.FailedJoinsPerMinute, c.ServerFailedJoinsPerMinute,
	} {
		if n < 0 || n > maxPerMinute {
			return ErrLimit
		}
	}
	for _, p := range c.TrustedProxies {
		if !p.IsValid() {
			return ErrProxy
		}
	}
	for _, o := range c.AllowOrigins {
		if !validOrigin(o) {
			return fmt.Errorf("%w: %q", ErrOrigin, o)
		}
	}
	return nil
}

func (c Config) perMinute(k Kind) int {
	if k == KindServer {
		return withDefault(c.ServerPerMinute, DefaultServerPerMinute)
	}
	return withDefault(c.PlayerPerMinute, DefaultPlayerPerMinute)
}

func (c Config) perAddress() int {
	return withDefault(c.AddressPerMinute, DefaultAddressPerMinute)
}

func (c Config) failedJoins(k Kind) int {
	if k == KindServer {
		return withDefault(c.ServerFailedJoinsPerMinute, DefaultServerFailedJoinsPerMinute)
	}
	return withDefault(c.FailedJoinsPerMinute, DefaultFailedJoinsPerMinute)
}

func withDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
