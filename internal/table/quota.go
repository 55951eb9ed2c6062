package table

import "math"

// Quota bounds what one allocation may relay: datagrams and bytes per second,
// each with a burst of one second. The zero Quota bounds nothing.
type Quota struct {
	datagram uint32 // price of a datagram, and of a byte, in units of time
	byteCost float64
}

// quotaUnit is the resolution of a meter: 1/8 µs. A meter holds, for datagrams
// and for bytes, the time until which what was relayed is paid for (generic
// cell rate algorithm), each in 32 bits, which go round in 537 s.
const (
	quotaUnitsPerMilli = 8000
	quotaBurst         = 1000 * quotaUnitsPerMilli
	quotaLate          = 100 * quotaUnitsPerMilli // how far behind a worker's clock may be
)

// NewQuota returns a quota of so many datagrams and bytes per second; zero of
// one means that it is not bounded.
func NewQuota(datagrams, bytes int) Quota {
	var q Quota
	if datagrams > 0 {
		q.datagram = uint32(math.Round(quotaBurst / float64(datagrams)))
	}
	if bytes > 0 {
		q.byteCost = quotaBurst / float64(bytes)
	}
	return q
}

// price returns what a datagram of size bytes costs of either.
func (q Quota) price(size int) (datagram, bytes uint32) {
	return q.datagram, uint32(q.byteCost * float64(size))
}

// Meter reports whether the owner may relay a datagram of size bytes now,
// within q, and counts it if so. Two workers at once may count one datagram for
// two, which is rare, since the kernel hands all datagrams of an endpoint to
// one worker, and does no harm.
func (a *Activity) TakeQuota(q Quota, size int, nowMillis int64) bool {
	return q == (Quota{}) || a.spendQuota(q, size, nowMillis)
}

func (a *Activity) spendQuota(q Quota, size int, nowMillis int64) bool {
	now, old := uint32(nowMillis*quotaUnitsPerMilli), a.meter.Load()
	datagram, bytes := q.price(size)
	datagrams, ok1 := spend(uint32(old>>32), now, datagram)
	volume, ok2 := spend(uint32(old), now, bytes)
	if !ok1 || !ok2 {
		return false
	}
	a.meter.Store(uint64(datagrams)<<32 | uint64(volume))
	return true
}

// Tally returns Spec.Tally. It lies with what a worker writes for each
// RELAY anyway, so that whoever counts by it meets no further cache line.
func (a *Activity) CounterIndex() uint32 { return a.tally.Load() }

// spend moves a paid-until time forward by price. A time that is further ahead
// than a burst can be, for a worker that is late, is one from before the clock
// went round.
func spend(paid, now, price uint32) (uint32, bool) {
	ahead := paid - now
	if ahead > quotaBurst+quotaLate {
		ahead = 0
	}
	return now + ahead + price, ahead+price <= quotaBurst
}
