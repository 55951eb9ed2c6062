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

type bucket struct {
	key   uint64        // hash of the key
	limit *rate.Limiter // nil in an empty place
}

// limiter holds token buckets by key in a set-associative table of fixed size; a bucket
// takes about 110 bytes. A new key in a full set replaces the bucket that is closest to
// full, whose key may get more than its limit, so that memory stays bounded.
type limiter[K comparable] struct {
	seed maphash.Seed

	mu   sync.Mutex // guards sets
	sets [][setWays]bucket
}

// newLimiter returns a limiter with that many buckets, a multiple of setWays.
func newLimiter[K comparable](buckets int) *limiter[K] {
	return &limiter[K]{seed: maphash.MakeSeed(), sets: make([][setWays]bucket, buckets/setWays)}
}

// take counts one event of a key, with perMinute also as the burst. It returns 0, or the
// time until the next event is permitted; a refused event is not counted.
func (l *limiter[K]) take(key K, perMinute int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.bucket(key, perMinute, now)
	if limit.AllowN(now, 1) {
		return 0
	}
	return untilOne(limit, now)
}

func (l *limiter[K]) peek(key K, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, b := l.find(key); b != nil {
		return untilOne(b.limit, now)
	}
	return 0
}

// takeKnown returns false for a key without a bucket.
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

func (l *limiter[K]) adopt(key K, perMinute int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key, perMinute, now)
}

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

func untilOne(limit *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - limit.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	wait := time.Duration(missing / float64(limit.Limit()) * float64(time.Second))
	return max(wait, time.Nanosecond)
}

// The caller of find holds mu, as for bucket and victim.
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

// A bucket with another rate keeps its tokens and gets the new rate.
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
