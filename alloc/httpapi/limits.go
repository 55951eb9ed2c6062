package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"math"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ferryrelay/ferry/alloc/api"
)

// The sizes of the tables in buckets. All tables take 3 MiB when they are empty and
// less than 20 MiB when they are full.
const (
	requestBuckets       = 65536
	addressBuckets       = 65536
	failedJoinBuckets    = 16384
	rejectedTokenBuckets = 8192
)

// bucketKey is the key of a bucket of requests.
type bucketKey struct {
	principal string
	call      callName
}

// limits holds all rate limits of a handler. Its fields are immutable; each table has
// its own lock.
type limits struct {
	requests             *limiter[bucketKey]
	addresses            *limiter[netip.Prefix] // requests of players, with any token
	failedJoins          *limiter[string]       // failed joins by principal
	failedJoinsByAddress *limiter[netip.Prefix] // failed joins of players by address
	rejectedTokens       *limiter[netip.Prefix] // tokens that Authenticate rejected
}

// RateCounts is the state of a handler's rate limits. Successive handlers share it, so
// that a reload of the configuration resets no limit. It may be used concurrently.
type RateCounts struct{ limits *limits }

// NewRateCounts returns counts of zero.
func NewRateCounts() *RateCounts { return &RateCounts{newLimits()} }

func newLimits() *limits {
	return &limits{
		requests:             newLimiter[bucketKey](requestBuckets),
		addresses:            newLimiter[netip.Prefix](addressBuckets),
		failedJoins:          newLimiter[string](failedJoinBuckets),
		failedJoinsByAddress: newLimiter[netip.Prefix](failedJoinBuckets),
		rejectedTokens:       newLimiter[netip.Prefix](rejectedTokenBuckets),
	}
}

// source is the origin of a request, for the limits.
type source struct {
	principal    principal
	address      netip.Prefix
	limitAddress bool // a player whose address is known
}

// clientAddress returns the player's address, the zero address if it is not known. The
// address of a backend says nothing about its players.
func (f source) clientAddress() netip.Addr {
	if !f.limitAddress {
		return netip.Addr{}
	}
	return f.address.Addr()
}

const addressLimited = "too many requests from this address"

// tooManyRequests returns the problem of a caller that has to wait, nil if wait is 0.
func tooManyRequests(what string, wait time.Duration) *api.Problem {
	if wait <= 0 {
		return nil
	}
	return withRetryAfter(statusProblem(http.StatusTooManyRequests, what), wait)
}

// refuseForger refuses an address that sent too many rejected tokens: a signature costs
// more to check than to forge.
func (h *Handler) refuseForger(address netip.Prefix) *api.Problem {
	if h.limits == nil {
		return nil
	}
	return tooManyRequests(addressLimited, h.limits.rejectedTokens.peek(address, h.now()))
}

// countUnauthenticated counts a request without a known caller by its address, and its
// token if Authenticate rejected it.
func (h *Handler) countUnauthenticated(address netip.Prefix, why error) *api.Problem {
	if h.limits == nil {
		return nil
	}
	if errors.Is(why, errRejectedToken) && !errors.Is(why, ErrAuthUnavailable) {
		h.limits.rejectedTokens.charge(address, h.cfg.perAddress(), h.now())
	}
	return tooManyRequests(addressLimited, h.limits.addresses.take(address, h.cfg.perAddress(), h.now()))
}

// checkRates counts a request by principal and by address. A request that one limit
// refuses does not count for the other: a caller above its own limit must not use up
// the limit of its address, and vice versa.
func (h *Handler) checkRates(ctx context.Context, f source, name callName) *api.Problem {
	if h.limits == nil {
		return nil
	}
	now := h.now()
	if f.limitAddress {
		if p := tooManyRequests(addressLimited, h.limits.addresses.peek(f.address, now)); p != nil {
			return p
		}
	}
	key := bucketKey{f.principal.name, name}
	p := tooManyRequests("too many requests", h.limits.requests.take(key, h.cfg.perMinute(f.principal.kind), now))
	if p != nil {
		return p
	}
	if f.limitAddress {
		if p := tooManyRequests(addressLimited, h.limits.addresses.take(f.address, h.cfg.perAddress(), now)); p != nil {
			return p
		}
	}
	return tooManyRequests("too many requests", h.takeShared(ctx, f, string(name), h.cfg.perMinute(f.principal.kind)))
}

// checkFailedJoins refuses a join of a caller with too many failed joins.
func (h *Handler) checkFailedJoins(f source) *api.Problem {
	if h.limits == nil {
		return nil
	}
	wait := h.limits.failedJoins.peek(f.principal.name, h.now())
	if f.limitAddress {
		wait = max(wait, h.limits.failedJoinsByAddress.peek(f.address, h.now()))
	}
	return tooManyRequests("too many failed joins", wait)
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
	if f.limitAddress {
		h.limits.failedJoinsByAddress.charge(f.address, h.cfg.failedJoins(KindPlayer), h.now())
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
