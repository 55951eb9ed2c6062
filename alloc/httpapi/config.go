package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/unset"
)

// The default limits per minute, principal and call. 60 is that of the original
// service.
const (
	defaultPlayerPerMinute = 60
	defaultServerPerMinute = 6000
)

// defaultAddressPerMinute limits requests without a valid token.
const defaultAddressPerMinute = 120

// The default limits of failed joins per minute and principal. That of a backend equals the rate that
// join codes are long enough for (see alloc.ServiceConfig.FailuresPerSecond).
const (
	defaultFailedJoinsPerMinute       = 10
	defaultServerFailedJoinsPerMinute = 600
)

// noOrigin is the only entry of [Config].AllowOrigins if no web page may call.
const noOrigin = "none"

const maxPerMinute = 1e9

// ErrConfig is wrapped by the errors of [New]. They name the field, and a token by its index, never by
// its secret.
var ErrConfig = errors.New("httpapi: invalid configuration")

// Config configures a [Handler].
type Config struct {
	// Service is required.
	Service *alloc.Service
	// Tokens are the static bearer tokens. At least one is required unless
	// Authenticate, Identify or Anonymous is set.
	Tokens []Token
	// Authenticate returns the holder of a token that is not one of Tokens. Tenant and Player are
	// required; Individual and Address are not used. Its error is logged and
	// must not contain the token; ErrTokenExpired, ErrAuthUnavailable and TokenError change the answer.
	// It is called concurrently and must limit its own time. Nil: only Tokens are accepted.
	Authenticate func(ctx context.Context, token string) (alloc.Caller, error)
	// Identify returns the caller of a request that has no bearer token, such as one with the
	// session cookie of the program, or one that Tokens lack while Authenticate is nil. An error
	// refuses the request, as for Authenticate, and lets it in with Anonymous. It must not read the
	// body; it is called concurrently and must limit its own time. It is not called for a request
	// that changes something and comes from a page of another site (http.CrossOriginProtection).
	// Nil: bearer tokens only.
	Identify func(r *http.Request) (alloc.Caller, error)
	// SharedLimiter counts requests and failed joins of principals for several
	// processes together, in addition to the limits of each process: one event of a key with a
	// limit of perMinute events per minute, which is also the burst. Above the limit it counts
	// nothing and returns how long to wait. After an error the limits of this process alone
	// decide. It is called concurrently. Nil: none.
	SharedLimiter func(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error)
	// Anonymous lets callers in whose token is missing or unknown: each call is a
	// player of its own in project "dev", environment "dev", or the player that the
	// token "player:NAME" names.
	Anonymous bool
	// PlayerPerMinute limits the requests of a player per minute and call; 0 means
	// 60. The limits of a token of Tokens of players, which many players may share, hold for each
	// client address, or /56 of IPv6.
	PlayerPerMinute int
	// ServerPerMinute is the same for a backend; 0 means 6000.
	ServerPerMinute int
	// addressPerMinute limits the requests per minute from one client address without
	// a valid token, of all calls, and those of /openapi.yaml; 0 means 120. An IPv6 address
	// counts by its /56.
	addressPerMinute int
	// failedJoinsPerMinute limits the joins with a code that does not exist, per
	// minute, of one player; it is also the burst. All players of a tenant at one
	// client address may have four times as many. 0 means 10.
	failedJoinsPerMinute int
	// ServerFailedJoinsPerMinute is the same for a backend, whose address is not
	// limited; 0 means 600.
	ServerFailedJoinsPerMinute int
	// AllowOrigins are the web origins that may call from a browser, such as
	// "https://game.example.org". Empty means "*", any; "none" alone, none.
	AllowOrigins []string
	// TrustedProxies are the networks of reverse proxies whose X-Forwarded-For header
	// is used. Nil means none: then all callers behind a proxy share the limits of its
	// address.
	TrustedProxies []netip.Prefix
	// Logger gets one line per request at debug level and one per internal error.
	// Nil disables logging, but for panics and slow calls of hooks, which slog.Default gets. Tokens, keys,
	// join codes and addresses are never logged.
	Logger *slog.Logger
	// OnRequest is called after each request, concurrently. Nil is allowed.
	OnRequest func(Request)
}

// Request is a request that was answered.
type Request struct {
	Call   string // the last part of its path, or "openapi", "preflight" or "other"
	Status int
	Took   time.Duration
	// Refusal is what the answer says if the request was refused, and Tenant that of its caller, empty
	// without a valid token. Both are empty for other requests.
	Refusal string
	Tenant  alloc.Tenant
}

func (c Config) validate() error {
	switch {
	case unset.IsZero(c.Service):
		return fmt.Errorf("%w: Service is nil, or alloc.NewService has not made it", ErrConfig)
	case len(c.Tokens) == 0 && c.Authenticate == nil && c.Identify == nil && !c.Anonymous:
		return fmt.Errorf("%w: no token and no issuer is configured, and anonymous callers are not allowed", ErrConfig)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"PlayerPerMinute", c.PlayerPerMinute}, {"ServerPerMinute", c.ServerPerMinute},
		{"ServerFailedJoinsPerMinute", c.ServerFailedJoinsPerMinute},
	} {
		if f.value < 0 || f.value > maxPerMinute {
			return fmt.Errorf("%w: %s is %d, want 0 to %d", ErrConfig, f.name, f.value, int(maxPerMinute))
		}
	}
	for _, p := range c.TrustedProxies {
		if !p.IsValid() {
			return fmt.Errorf("%w: TrustedProxies has an invalid prefix", ErrConfig)
		}
	}
	if _, err := newOrigins(c.AllowOrigins); err != nil {
		return fmt.Errorf("%w: AllowOrigins: %w", ErrConfig, err)
	}
	return nil
}

func (c Config) perMinute(server bool) int {
	if server {
		return cmp.Or(c.ServerPerMinute, defaultServerPerMinute)
	}
	return cmp.Or(c.PlayerPerMinute, defaultPlayerPerMinute)
}

func (c Config) perAddress() int {
	return cmp.Or(c.addressPerMinute, defaultAddressPerMinute)
}

func (c Config) failedJoins(server bool) int {
	if server {
		return cmp.Or(c.ServerFailedJoinsPerMinute, defaultServerFailedJoinsPerMinute)
	}
	return cmp.Or(c.failedJoinsPerMinute, defaultFailedJoinsPerMinute)
}

func (c Config) failedJoinsPerAddress() int {
	return min(c.failedJoins(false), maxPerMinute/playersPerAddress) * playersPerAddress
}
