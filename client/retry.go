package client

import (
	"math"
	"time"
)

// never is a time that does not come, in nanoseconds of the session's clock.
const never = math.MaxInt64

// retry is the schedule of a request. Times are ns of the session's clock.
type retry struct {
	active bool
	since  int64 // when it was started
	next   int64 // when it is due again
	sends  int   // how often it was sent
}

func (r *retry) start(now int64) { *r = retry{active: true, since: now, next: now} }

func (r *retry) stop() { *r = retry{} }

func (r *retry) due(now int64) bool { return r.active && now >= r.next }

// noteSent sets the next time: after period/4, period/2, and then each period.
func (r *retry) noteSent(now int64, period time.Duration) {
	shift := max(0, 2-r.sends)
	r.sends++
	r.next = now + int64(period>>shift)
}

func (r *retry) at() int64 {
	if !r.active {
		return never
	}
	return r.next
}

func (r *retry) expired(now int64, limit time.Duration) bool {
	return r.active && now-r.since >= int64(limit)
}

func (r *retry) expiry(limit time.Duration) int64 {
	if !r.active {
		return never
	}
	return r.since + int64(limit)
}
