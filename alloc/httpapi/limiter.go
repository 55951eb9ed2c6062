package httpapi

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

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
