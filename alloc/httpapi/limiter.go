package httpapi

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// setWays is how many buckets of a limiter are compared when one of them has to
// make room. With a keyed hash nobody can choose whom to meet there.
const setWays = 8

// bucket holds what one key may still do.
type bucket struct {
	key   uint64        // hash of the key
	limit *rate.Limiter // nil in an empty place
}

// limiter counts by key in a table of fixed size; a bucket takes some 110
// bytes. When all places that a key can have are taken, the fullest bucket
// there is forgotten. If it is full, as one that nobody touched for a minute
// is, that forgives nothing; otherwise memory is the harder limit.
type limiter[K comparable] struct {
	seed maphash.Seed

	mu   sync.Mutex // guards sets
	sets [][setWays]bucket
}

// newLimiter returns a limiter of that many buckets, a multiple of setWays.
func newLimiter[K comparable](buckets int) *limiter[K] {
	return &limiter[K]{seed: maphash.MakeSeed(), sets: make([][setWays]bucket, buckets/setWays)}
}

// take counts one event of a key that may have perMinute, as many at once. It
// returns 0, or how long to wait for the next one to be permitted; an event
// that is refused costs nothing.
func (l *limiter[K]) take(key K, perMinute int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.bucket(key, perMinute, now)
	if limit.AllowN(now, 1) {
		return 0
	}
	return untilOne(limit, now)
}

// wait returns what take would, and counts nothing.
func (l *limiter[K]) wait(key K, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, b := l.find(key); b != nil {
		return untilOne(b.limit, now)
	}
	return 0
}

// charge counts an event that has happened already. It may leave less than
// nothing, which lengthens the wait.
func (l *limiter[K]) charge(key K, perMinute int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key, perMinute, now).ReserveN(now, 1)
}

// pause makes the key wait for at least that long, up to a minute.
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

// untilOne returns how long it takes until the bucket holds a whole token, or
// 0 when it does.
func untilOne(limit *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - limit.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	wait := time.Duration(missing / float64(limit.Limit()) * float64(time.Second))
	return max(wait, time.Nanosecond)
}

// find returns the key's hash and its bucket, nil if it has none. The caller
// holds mu, as those of bucket and victim do.
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

// bucket returns the limit of the key's bucket, a new one if need be. One that
// was made for another rate keeps what is left in it.
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

// victim returns an empty place of the set, or its fullest bucket.
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
