package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

// The sizes of the tables in buckets. All tables take 3 MiB when they are empty and
// less than 20 MiB when they are full.
const (
	requestBuckets         = 65536
	unauthenticatedBuckets = 32768
	acceptedTokenBuckets   = 32768
	failedJoinBuckets      = 16384
	rejectedTokenBuckets   = 8192
)

// spareTokenChecks is the number of tokens a second, from all addresses together, that
// are checked although their address sent too many rejected ones, so that a neighbour
// of an attacker can log in. They cost less than 100 ms of one core.
const spareTokenChecks = 1000

// playersPerAddress is the number of players of a tenant with too many failed joins that
// pause the joins of the other ones at their address: one does not.
const playersPerAddress = 4

type bucketKey struct {
	principal string
	call      callName
}

// addressKey is the key of the failed joins from an address. It has the tenant, so that
// guesses at the codes of one tenant do not refuse joins of another.
type addressKey struct {
	address netip.Prefix
	tenant  alloc.Tenant
}

// limits may be used concurrently.
type limits struct {
	cfg      *Config
	calls    int     // of the API, each of which has a count of its own
	counts   *counts // nil: unlimited
	refusals refusalLog
	log      *slog.Logger
	now      func() time.Time
}

// newLimits continues the counts of the first handler, if there is one.
func newLimits(cfg *Config, calls int, log *slog.Logger, now func() time.Time, replaced []*Handler) *limits {
	l := &limits{cfg: cfg, calls: calls, log: log, now: now}
	if cfg.Service.Unlimited() {
		return l
	}
	if len(replaced) > 0 && replaced[0] != nil {
		l.counts = replaced[0].limits.counts
	}
	if l.counts == nil {
		l.counts = newCounts()
	}
	return l
}

// counts has what callers have used of their limits. Its fields are immutable; each limiter has
// its own lock.
type counts struct {
	requests             *limiter[bucketKey]
	unauthenticated      *limiter[netip.Prefix] // requests without a valid token
	failedJoins          *limiter[string]       // failed joins by principal
	failedJoinsByAddress *limiter[addressKey]   // failed joins of players by address
	acceptedTokens       *limiter[digest]       // checks of tokens that Authenticate accepted
	rejectedTokens       *limiter[netip.Prefix] // tokens that Authenticate rejected
	spareChecks          *rate.Limiter          // checks beyond rejectedTokens
}

func newCounts() *counts {
	return &counts{
		requests:             newLimiter[bucketKey](requestBuckets),
		unauthenticated:      newLimiter[netip.Prefix](unauthenticatedBuckets),
		failedJoins:          newLimiter[string](failedJoinBuckets),
		failedJoinsByAddress: newLimiter[addressKey](failedJoinBuckets),
		acceptedTokens:       newLimiter[digest](acceptedTokenBuckets),
		rejectedTokens:       newLimiter[netip.Prefix](rejectedTokenBuckets),
		spareChecks:          rate.NewLimiter(spareTokenChecks, spareTokenChecks),
	}
}

type source struct {
	principal principal
	client    forwarded.Client
}

// limitFailedJoins reports whether the failed joins of the source count by its address:
// it is a player, and no trusted proxy left its address out.
func (f source) limitFailedJoins() bool {
	return !f.principal.server && (f.client.Known || f.client.Malformed || !f.client.Prefix.IsValid())
}

func (f source) addressKey() addressKey {
	return addressKey{f.client.Prefix, f.principal.tenant}
}

// clientAddress returns the player's address, the zero address if it is not known. The
// address of a backend says nothing about its players.
func (f source) clientAddress() netip.Addr {
	if !f.client.Known || f.principal.server {
		return netip.Addr{}
	}
	return f.client.Prefix.Addr()
}

type rateLimit struct {
	setting string // of ferry, perhaps a constant there; the fields of Config have the same names
	most    int    // per minute; 0: it depends on the kind of the token
	what    string // is limited
}

var tokenLimit = rateLimit{setting: "player_per_minute or server_per_minute", what: "all requests with this token"}

func (l *limits) callLimit(server bool) rateLimit {
	if server {
		return rateLimit{"server_per_minute", l.cfg.perMinute(server), "requests of a backend's token, by call"}
	}
	return rateLimit{"player_per_minute", l.cfg.perMinute(server),
		"requests of a player, or of a static token at one address, by call; a backend uses a token of kind server"}
}

func (l *limits) addressLimit() rateLimit {
	return rateLimit{"address_per_minute", l.cfg.perAddress(), "requests from one address without a valid token"}
}

func (l *limits) failedJoinLimit(server bool) rateLimit {
	if server {
		return rateLimit{"server_failed_joins_per_minute", l.cfg.failedJoins(server), "unknown join codes of a backend's token"}
	}
	return rateLimit{"failed_joins_per_minute", l.cfg.failedJoins(server), "unknown join codes of a player"}
}

func (l *limits) tooManyRequests(limit rateLimit, wait time.Duration) *api.Problem {
	if wait <= 0 {
		return nil
	}
	l.refusals.note(l.log, limit, l.now())
	text := fmt.Sprintf("too many requests (%s: %s)", limit.setting, limit.what)
	if limit.most > 0 {
		text = fmt.Sprintf("too many requests: at most %d a minute (%s: %s)", limit.most, limit.setting, limit.what)
	}
	return withRetryAfter(statusProblem(http.StatusTooManyRequests, text), wait)
}

const refusalLogEvery = time.Minute

type refusalLog struct {
	mu     sync.Mutex
	limits map[string]*refused // by setting
}

type refused struct {
	said  time.Time
	count int
}

func (r *refusalLog) note(log *slog.Logger, l rateLimit, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limits == nil {
		r.limits = make(map[string]*refused)
	}
	n := r.limits[l.setting]
	if n == nil {
		n = new(refused)
		r.limits[l.setting] = n
	}
	n.count++
	if !n.said.IsZero() && now.Sub(n.said) < refusalLogEvery {
		return
	}
	log.Warn("requests are refused by a rate limit", "limit", l.setting, "per_minute", l.most, "of", l.what,
		"refused_since_last_line", n.count)
	*n = refused{said: now}
}

// takeTokenCheck counts a check of a token by Authenticate, which costs more than to
// forge a signature. A token that was accepted before has a budget of its own, which no
// neighbour can use up. Any other is refused if its address sent too many rejected ones
// and no spare check is left.
func (l *limits) takeTokenCheck(address netip.Prefix, token digest) *api.Problem {
	if l.counts == nil {
		return nil
	}
	now := l.now()
	if wait, ok := l.counts.acceptedTokens.takeKnown(token, now); ok {
		return l.tooManyRequests(tokenLimit, wait)
	}
	wait := l.counts.rejectedTokens.peek(address, now)
	if wait > 0 && l.counts.spareChecks.AllowN(now, 1) {
		return nil
	}
	return l.tooManyRequests(l.addressLimit(), wait)
}

// countAcceptedToken counts a check of a token that Authenticate accepted. It may be used
// as often as the limits of its holder permit.
func (l *limits) countAcceptedToken(token digest, server bool) {
	if l.counts != nil {
		perMinute := min(l.cfg.perMinute(server), maxPerMinute/l.calls) * l.calls
		l.counts.acceptedTokens.adopt(token, perMinute, l.now())
	}
}

func (l *limits) countRejectedToken(address netip.Prefix, token digest) {
	if l.counts != nil {
		l.counts.acceptedTokens.forget(token)
		l.counts.rejectedTokens.charge(address, l.cfg.perAddress(), l.now())
	}
}

func (l *limits) countUnauthenticated(address netip.Prefix) *api.Problem {
	if l.counts == nil {
		return nil
	}
	return l.tooManyRequests(l.addressLimit(), l.counts.unauthenticated.take(address, l.cfg.perAddress(), l.now()))
}

func (l *limits) checkRates(ctx context.Context, f source, name callName) *api.Problem {
	if l.counts == nil {
		return nil
	}
	key, limit := bucketKey{f.principal.name, name}, l.callLimit(f.principal.server)
	if p := l.tooManyRequests(limit, l.counts.requests.take(key, limit.most, l.now())); p != nil {
		return p
	}
	return l.tooManyRequests(limit, l.takeShared(ctx, f, string(name), limit.most))
}

func (l *limits) checkFailedJoins(f source) *api.Problem {
	if l.counts == nil {
		return nil
	}
	wait := l.counts.failedJoins.peek(f.principal.name, l.now())
	if f.limitFailedJoins() {
		wait = max(wait, l.counts.failedJoinsByAddress.peek(f.addressKey(), l.now()))
	}
	return l.tooManyRequests(l.failedJoinLimit(f.principal.server), wait)
}

// countFailedJoin counts a join with a code that does not exist. Concurrent joins may
// exceed the limit, which makes the wait longer.
func (l *limits) countFailedJoin(ctx context.Context, f source) {
	if l.counts == nil {
		return
	}
	most := l.cfg.failedJoins(f.principal.server)
	l.counts.failedJoins.charge(f.principal.name, most, l.now())
	if wait := l.takeShared(ctx, f, failedJoin, most); wait > 0 {
		l.counts.failedJoins.pause(f.principal.name, most, wait, l.now())
	}
	if f.limitFailedJoins() {
		l.counts.failedJoinsByAddress.charge(f.addressKey(), l.cfg.failedJoinsPerAddress(), l.now())
	}
}

// sharedLimiterTimeout bounds one call of Config.SharedLimiter. After it, the limits of
// this process alone decide.
const sharedLimiterTimeout = 20 * time.Millisecond

// failedJoin is the key of failed joins in Config.SharedLimiter, next to the names of calls.
const failedJoin = "failedjoin"

// takeShared returns how long a player or a backend has to wait. It returns 0 if the
// shared limiter fails, so that no caller is refused because the store is down.
func (l *limits) takeShared(ctx context.Context, f source, what string, perMinute int) time.Duration {
	if l.cfg.SharedLimiter == nil || f.principal.anonymous {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, sharedLimiterTimeout)
	defer cancel()
	ok, wait, err := l.cfg.SharedLimiter(ctx, sharedKey(f.principal.name, what), perMinute)
	switch {
	case err != nil:
		l.log.Debug("shared limiter failed; the limits of this process apply", "error", err)
		return 0
	case ok:
		return 0
	}
	return max(wait, time.Nanosecond)
}

// sharedKey returns a digest, so that names of players do not leave this process.
func sharedKey(principal, what string) string {
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16]) + ":" + what
}
