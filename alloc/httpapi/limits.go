package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
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
// are checked although their address sent too many rejected ones. So a neighbour of an
// attacker can log in. The checks of one second cost less than 100 ms of one core.
const spareTokenChecks = 1000

// playersPerAddress is the number of players of a tenant with too many failed joins that
// pause the joins of the other ones at their address: one does not.
const playersPerAddress = 4

// bucketKey is the key of a bucket of requests.
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

// limits holds all rate limits of a handler. Its fields are immutable; each limiter has
// its own lock.
type limits struct {
	requests             *limiter[bucketKey]
	unauthenticated      *limiter[netip.Prefix] // requests without a valid token
	failedJoins          *limiter[string]       // failed joins by principal
	failedJoinsByAddress *limiter[addressKey]   // failed joins of players by address
	acceptedTokens       *limiter[digest]       // checks of tokens that Authenticate accepted
	rejectedTokens       *limiter[netip.Prefix] // tokens that Authenticate rejected
	spareChecks          *rate.Limiter          // checks beyond rejectedTokens
}

func newLimits() *limits {
	return &limits{
		requests:             newLimiter[bucketKey](requestBuckets),
		unauthenticated:      newLimiter[netip.Prefix](unauthenticatedBuckets),
		failedJoins:          newLimiter[string](failedJoinBuckets),
		failedJoinsByAddress: newLimiter[addressKey](failedJoinBuckets),
		acceptedTokens:       newLimiter[digest](acceptedTokenBuckets),
		rejectedTokens:       newLimiter[netip.Prefix](rejectedTokenBuckets),
		spareChecks:          rate.NewLimiter(spareTokenChecks, spareTokenChecks),
	}
}

// source is the origin of a request, for the limits.
type source struct {
	principal principal
	client    forwarded.Client
}

// limitFailedJoins reports whether the failed joins of the source count by its address:
// it is a player, and no trusted proxy left its address out.
func (f source) limitFailedJoins() bool {
	return f.principal.kind != KindServer && (f.client.Known || f.client.Malformed || !f.client.Prefix.IsValid())
}

// addressKey returns the key of the source's failed joins.
func (f source) addressKey() addressKey {
	return addressKey{f.client.Prefix, f.principal.tenant}
}

// clientAddress returns the player's address, the zero address if it is not known. The
// address of a backend says nothing about its players.
func (f source) clientAddress() netip.Addr {
	if !f.client.Known || f.principal.kind == KindServer {
		return netip.Addr{}
	}
	return f.client.Prefix.Addr()
}

// rateLimit is a rate limit as callers and operators know it.
type rateLimit struct {
	setting string // of ferry; the fields of Config have the same names
	most    int    // per minute; 0: it depends on the kind of the token
	what    string // is limited
}

// tokenLimit limits the checks of one token's signature: all calls together.
var tokenLimit = rateLimit{setting: "player_per_minute or server_per_minute", what: "all requests with this token"}

func (h *Handler) callLimit(kind Kind) rateLimit {
	if kind == KindServer {
		return rateLimit{"server_per_minute", h.cfg.perMinute(kind), "requests of a backend's token, by call"}
	}
	return rateLimit{"player_per_minute", h.cfg.perMinute(kind), "requests of a player, by call; a backend uses a token of kind server"}
}

func (h *Handler) addressLimit() rateLimit {
	return rateLimit{"address_per_minute", h.cfg.perAddress(), "requests from one address without a valid token"}
}

func (h *Handler) failedJoinLimit(kind Kind) rateLimit {
	if kind == KindServer {
		return rateLimit{"server_failed_joins_per_minute", h.cfg.failedJoins(kind), "unknown join codes of a backend's token"}
	}
	return rateLimit{"failed_joins_per_minute", h.cfg.failedJoins(kind), "unknown join codes of a player"}
}

// tooManyRequests returns the problem of a caller that has to wait, nil if wait is 0.
func (h *Handler) tooManyRequests(l rateLimit, wait time.Duration) *api.Problem {
	if wait <= 0 {
		return nil
	}
	h.refusals.note(h.log, l, h.now())
	text := fmt.Sprintf("too many requests (%s: %s)", l.setting, l.what)
	if l.most > 0 {
		text = fmt.Sprintf("too many requests: at most %d a minute (%s: %s)", l.most, l.setting, l.what)
	}
	return withRetryAfter(statusProblem(http.StatusTooManyRequests, text), wait)
}

// refusalLogEvery is how often the log says that a limit refuses requests.
const refusalLogEvery = time.Minute

// refusalLog counts what each limit refused since the log last said so.
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

// takeTokenCheck counts a check of a token by Authenticate, since a signature costs more
// to check than to forge. A token that was accepted before has a budget of its own, so
// that no neighbour can use it up, and so that its repetition is limited. Any other token
// is refused if its address sent too many rejected ones and no spare check is left.
func (h *Handler) takeTokenCheck(address netip.Prefix, token digest) *api.Problem {
	if h.limits == nil {
		return nil
	}
	now := h.now()
	if wait, ok := h.limits.acceptedTokens.takeKnown(token, now); ok {
		return h.tooManyRequests(tokenLimit, wait)
	}
	wait := h.limits.rejectedTokens.peek(address, now)
	if wait > 0 && h.limits.spareChecks.AllowN(now, 1) {
		return nil
	}
	return h.tooManyRequests(h.addressLimit(), wait)
}

// countAcceptedToken counts a check of a token that Authenticate accepted. It may be used
// as often as the limits of its holder permit.
func (h *Handler) countAcceptedToken(token digest, kind Kind) {
	if h.limits != nil {
		perMinute := min(h.cfg.perMinute(kind), maxPerMinute/len(h.calls)) * len(h.calls)
		h.limits.acceptedTokens.adopt(token, perMinute, h.now())
	}
}

// countRejectedToken counts a token that Authenticate rejected, by its address.
func (h *Handler) countRejectedToken(address netip.Prefix, token digest) {
	if h.limits != nil {
		h.limits.acceptedTokens.forget(token)
		h.limits.rejectedTokens.charge(address, h.cfg.perAddress(), h.now())
	}
}

// countUnauthenticated counts a request without a valid token by its address.
func (h *Handler) countUnauthenticated(address netip.Prefix) *api.Problem {
	if h.limits == nil {
		return nil
	}
	return h.tooManyRequests(h.addressLimit(), h.limits.unauthenticated.take(address, h.cfg.perAddress(), h.now()))
}

// checkRates counts a request of an authenticated caller.
func (h *Handler) checkRates(ctx context.Context, f source, name callName) *api.Problem {
	if h.limits == nil {
		return nil
	}
	key, limit := bucketKey{f.principal.name, name}, h.callLimit(f.principal.kind)
	if p := h.tooManyRequests(limit, h.limits.requests.take(key, limit.most, h.now())); p != nil {
		return p
	}
	return h.tooManyRequests(limit, h.takeShared(ctx, f, string(name), limit.most))
}

// checkFailedJoins refuses a join of a caller with too many failed joins.
func (h *Handler) checkFailedJoins(f source) *api.Problem {
	if h.limits == nil {
		return nil
	}
	wait := h.limits.failedJoins.peek(f.principal.name, h.now())
	if f.limitFailedJoins() {
		wait = max(wait, h.limits.failedJoinsByAddress.peek(f.addressKey(), h.now()))
	}
	return h.tooManyRequests(h.failedJoinLimit(f.principal.kind), wait)
}

// countFailedJoin counts a join with a code that does not exist. Concurrent joins may
// exceed the limit, which makes the wait longer.
func (h *Handler) countFailedJoin(ctx context.Context, f source) {
	if h.limits == nil {
		return
	}
	most := h.cfg.failedJoins(f.principal.kind)
	h.limits.failedJoins.charge(f.principal.name, most, h.now())
	if wait := h.takeShared(ctx, f, failedJoin, most); wait > 0 {
		h.limits.failedJoins.pause(f.principal.name, most, wait, h.now())
	}
	if f.limitFailedJoins() {
		h.limits.failedJoinsByAddress.charge(f.addressKey(), h.cfg.failedJoinsPerAddress(), h.now())
	}
}

// sharedLimiterTimeout bounds one call of a [SharedLimiter]. After it, the limits of
// this process alone decide.
const sharedLimiterTimeout = 20 * time.Millisecond

// failedJoin is the key of failed joins in a SharedLimiter, next to the names of calls.
const failedJoin = "failedjoin"

// SharedLimiter limits rates by key for several processes together. It is called
// concurrently.
type SharedLimiter interface {
	// Take counts one event of a key with a limit of perMinute events per minute,
	// which is also the burst. Above the limit it counts nothing and returns how long
	// to wait. After an error the limits of this process alone decide.
	Take(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error)
}

// takeShared counts an event of a player or a backend for all processes, and returns how
// long it has to wait. It returns 0 if the shared limiter fails, so that no caller is
// refused because the store is down.
func (h *Handler) takeShared(ctx context.Context, f source, what string, perMinute int) time.Duration {
	if h.cfg.SharedLimiter == nil || f.principal.anonymous {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, sharedLimiterTimeout)
	defer cancel()
	ok, wait, err := h.cfg.SharedLimiter.Take(ctx, sharedKey(f.principal.name, what), perMinute)
	switch {
	case err != nil:
		h.log.Debug("shared limiter failed; the limits of this process apply", "error", err)
		return 0
	case ok:
		return 0
	}
	return max(wait, time.Nanosecond)
}

// sharedKey returns the key of a count: a digest, so that names of players do not leave
// this process.
func sharedKey(principal, what string) string {
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16]) + ":" + what
}

// setWays is the number of buckets in a set. A new key replaces a bucket of its set. The
// hash is keyed, so that a caller cannot choose which keys share its set.
const setWays = 8

// bucket is the token bucket of one key.
type bucket struct {
	key   uint64        // hash of the key
	limit *rate.Limiter // nil in an empty place
}

// limiter holds token buckets by key in a set-associative table of fixed size; a bucket
// takes about 110 bytes. A new key in a full set replaces the bucket that is closest to
// full. A full bucket, such as one unused for a minute, holds no information; otherwise
// the key of the replaced bucket gets more than its limit, so that memory stays bounded.
type limiter[K comparable] struct {
	seed maphash.Seed

	mu   sync.Mutex // guards sets
	sets [][setWays]bucket
}

// newLimiter returns a limiter with that many buckets, a multiple of setWays.
func newLimiter[K comparable](buckets int) *limiter[K] {
	return &limiter[K]{seed: maphash.MakeSeed(), sets: make([][setWays]bucket, buckets/setWays)}
}

// take counts one event of a key with a limit of perMinute events per minute, which is
// also the burst. It returns 0, or the time until the next event is permitted; a refused
// event is not counted.
func (l *limiter[K]) take(key K, perMinute int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.bucket(key, perMinute, now)
	if limit.AllowN(now, 1) {
		return 0
	}
	return untilOne(limit, now)
}

// peek returns the result of take without counting an event.
func (l *limiter[K]) peek(key K, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, b := l.find(key); b != nil {
		return untilOne(b.limit, now)
	}
	return 0
}

// takeKnown is take for a key that has a bucket, at its rate. It returns false for any
// other key.
func (l *limiter[K]) takeKnown(key K, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, b := l.find(key)
	switch {
	case b == nil:
		return 0, false
	case b.limit.AllowN(now, 1):
		return 0, true
	}
	return untilOne(b.limit, now), true
}

// adopt gives the key a bucket if it has none, and sets its rate.
func (l *limiter[K]) adopt(key K, perMinute int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key, perMinute, now)
}

// forget removes the key's bucket.
func (l *limiter[K]) forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, b := l.find(key); b != nil {
		b.limit = nil
	}
}

// charge counts an event that has already happened. The bucket may become negative,
// which makes the wait longer.
func (l *limiter[K]) charge(key K, perMinute int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key, perMinute, now).ReserveN(now, 1)
}

// pause makes the key wait for at least that time, up to a minute.
func (l *limiter[K]) pause(key K, perMinute int, wait time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.bucket(key, perMinute, now)
	seconds := min(wait, time.Minute).Seconds()
	for spend := int(math.Ceil(seconds*float64(limit.Limit()) - 1 + limit.TokensAt(now))); spend > 0; {
		n := min(spend, limit.Burst())
		limit.ReserveN(now, n)
		spend -= n
	}
}

// untilOne returns the time until the bucket holds a whole token, 0 if it does now.
func untilOne(limit *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - limit.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	wait := time.Duration(missing / float64(limit.Limit()) * float64(time.Second))
	return max(wait, time.Nanosecond)
}

// find returns the key's hash and its bucket, nil if it has none. The caller holds mu, as
// for bucket and victim.
func (l *limiter[K]) find(key K) (uint64, *bucket) {
	hash := maphash.Comparable(l.seed, key)
	set := &l.sets[hash%uint64(len(l.sets))]
	for i := range set {
		if b := &set[i]; b.limit != nil && b.key == hash {
			return hash, b
		}
	}
	return hash, nil
}

// bucket returns the key's bucket, a new one if it has none. A bucket with another rate
// keeps its tokens and gets the new rate.
func (l *limiter[K]) bucket(key K, perMinute int, now time.Time) *rate.Limiter {
	hash, b := l.find(key)
	if b == nil {
		b = victim(&l.sets[hash%uint64(len(l.sets))], now)
		b.key, b.limit = hash, rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)
	}
	if b.limit.Burst() != perMinute {
		b.limit.SetLimitAt(now, rate.Limit(float64(perMinute)/60))
		b.limit.SetBurstAt(now, perMinute)
	}
	return b.limit
}

// victim returns an empty bucket of the set, or the one closest to full.
func victim(set *[setWays]bucket, now time.Time) *bucket {
	var best *bucket
	most := 0.0
	for i := range set {
		b := &set[i]
		if b.limit == nil {
			return b
		}
		if full := b.limit.TokensAt(now) / float64(b.limit.Burst()); best == nil || full > most {
			best, most = b, full
		}
	}
	return best
}
