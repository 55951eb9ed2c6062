package httpapi

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxBuckets is the most principals and calls that are counted at once. A
// bucket takes some 300 bytes, so the table stays below 32 MiB.
const maxBuckets = 65536

// evictScan is how many of the oldest buckets are looked at for a full one. A
// bucket that nobody touched for a minute is always full, so more than one
// look is needed only while callers come faster than maxBuckets a minute.
const evictScan = 16

// bucketKey names a bucket: who calls what.
type bucketKey struct {
	principal string
	call      callName
}

// bucket holds the requests that one principal may still make.
type bucket struct {
	key   bucketKey
	limit *rate.Limiter
}

// limiter counts requests per principal and call, in bounded memory. When the
// table is full the oldest full bucket is forgotten, which forgives nothing: a
// new one would be full as well.
type limiter struct {
	max int

	mu      sync.Mutex // guards the following fields
	buckets map[bucketKey]*list.Element
	order   *list.List // of *bucket, the one used last in front
}

func newLimiter(most int) *limiter {
	return &limiter{max: most, buckets: make(map[bucketKey]*list.Element), order: list.New()}
}

// take counts one request. It returns 0, or how long to wait for the next one
// to be permitted; a request that is refused costs nothing.
func (l *limiter) take(key bucketKey, perMinute int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.bucket(key, perMinute, now).limit
	if limit.AllowN(now, 1) {
		return 0
	}
	return untilOne(limit, now)
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

func (l *limiter) bucket(key bucketKey, perMinute int, now time.Time) *bucket {
	if e, ok := l.buckets[key]; ok {
		l.order.MoveToFront(e)
		return e.Value.(*bucket)
	}
	if l.order.Len() >= l.max {
		l.evict(now)
	}
	every := rate.Limit(float64(perMinute) / 60)
	b := &bucket{key: key, limit: rate.NewLimiter(every, perMinute)}
	l.buckets[key] = l.order.PushFront(b)
	return b
}

// evict forgets the oldest full bucket, or the oldest one when none of those
// looked at is full: memory is the harder limit.
func (l *limiter) evict(now time.Time) {
	victim := l.order.Back()
	for e, n := victim, 0; e != nil && n < evictScan; e, n = e.Prev(), n+1 {
		limit := e.Value.(*bucket).limit
		if limit.TokensAt(now) >= float64(limit.Burst()) {
			victim = e
			break
		}
	}
	delete(l.buckets, victim.Value.(*bucket).key)
	l.order.Remove(victim)
}
