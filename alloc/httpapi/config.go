package httpapi

import (
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

// maxFailedJoins bounds Config.FailedJoinsPerSecond: codes of 12 symbols could
// not make up for more.
const maxFailedJoins = 1e6

// Errors of [New] about the configuration as a whole.
var (
	// ErrNoService: Config.Service is nil.
	ErrNoService = errors.New("httpapi: no service")
	// ErrNoCredential: neither a token nor anonymous callers, so that nobody
	// could call.
	ErrNoCredential = errors.New("httpapi: no token is configured and anonymous callers are not let in")
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
	// Anonymous is set.
	Tokens []Token
	// Anonymous lets callers in whose token is missing or unknown: each call is
	// a player of its own in project "dev", environment "dev". Unknown tokens
	// are let in too, since a game always sends the one of its own account.
	Anonymous bool
	// Unlimited switches off the limits of requests and of failed joins.
	Unlimited bool
	// PlayerPerMinute is how many requests a player may make per minute and
	// call; 0 means 60.
	PlayerPerMinute int
	// ServerPerMinute is the same for a backend; 0 means 6000.
	ServerPerMinute int
	// FailedJoinsPerSecond is how many joins of one tenant may name no live
	// code, a minute's worth at once; then joins of that tenant are refused. It
	// is to be the FailuresPerSecond of the service, whose join codes are as
	// long as this rate makes necessary; 0 means the same default, 10.
	FailedJoinsPerSecond float64
	// AllowOrigins are the web origins whose pages may call, such as
	// "https://game.example.org". Nil means "*", any; empty means none.
	AllowOrigins []string
	// TrustedProxies are the networks of reverse proxies whose X-Forwarded-For
	// is believed when an anonymous caller's address is wanted. Nil means none.
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
	case len(c.Tokens) == 0 && !c.Anonymous:
		return ErrNoCredential
	case c.PlayerPerMinute < 0 || c.ServerPerMinute < 0,
		!(c.FailedJoinsPerSecond >= 0 && c.FailedJoinsPerSecond <= maxFailedJoins): // NaN too
		return ErrLimit
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

func (c Config) failedJoins() float64 {
	return withDefault(c.FailedJoinsPerSecond, alloc.DefaultFailuresPerSecond)
}

func withDefault[T int | float64](n, otherwise T) T {
	if n == 0 {
		return otherwise
	}
	return n
}
