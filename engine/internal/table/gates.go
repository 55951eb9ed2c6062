package table

import "sync/atomic"

// Rate permits one event each IntervalMicros on average, and up to Burst at once.
type Rate struct {
	IntervalMicros int64
	Burst          int64
}

// Allows reports whether Take would draw an event from the gate at nowMillis.
func (r Rate) Allows(gate *atomic.Uint64, nowMillis int64) bool {
	now := nowMillis * 1000
	return max(int64(gate.Load()), now)+r.IntervalMicros-now <= r.Burst*r.IntervalMicros
}

// Take draws one event from the gate, if one is left. The gate is one word, the time at which it
// will be full again (generic cell rate algorithm), so several goroutines may share it.
func (r Rate) Take(gate *atomic.Uint64, nowMillis int64) bool {
	now := nowMillis * 1000
	for {
		old := gate.Load()
		full := max(int64(old), now) + r.IntervalMicros
		if full-now > r.Burst*r.IntervalMicros {
			return false
		}
		if gate.CompareAndSwap(old, uint64(full)) {
			return true
		}
	}
}

// TakePlain is Take for a gate of 32 bits that one goroutine owns. IntervalMicros is a multiple of
// 1000. The gate wraps after 49 days: unused for so long, it may refuse an event for the time of a
// burst.
func (r Rate) TakePlain(gate *uint32, nowMillis int64) bool {
	cost, burst := r.millis()
	next, ok := takeCost(*gate, uint32(nowMillis), cost, burst, clockSkewMillis)
	if ok {
		*gate = next
	}
	return ok
}

func (r Rate) millis() (interval, burst uint32) {
	interval = uint32(r.IntervalMicros / 1000)
	return interval, interval * uint32(r.Burst)
}

// takeCost returns the time of a gate of 32 bits, in any unit, after an event of that cost, and
// whether it stays within the burst. A time further ahead than a burst can be, even for a worker
// whose clock is behind by skew, is from before the wrap.
func takeCost(gate, now, cost, burst, skew uint32) (uint32, bool) {
	ahead := gate - now
	if ahead > burst+skew {
		ahead = 0
	}
	return now + ahead + cost, ahead+cost <= burst
}

// A new gate is as good as an idle one.
func isIdle(gate, now, burst, skew uint32) bool {
	ahead := gate - now
	return ahead == 0 || ahead > burst+skew
}

// takeShared is for a gate that any goroutine may use.
func takeShared(gate *atomic.Uint32, now, cost, burst, skew uint32) bool {
	for {
		old := gate.Load()
		next, ok := takeCost(old, now, cost, burst, skew)
		if !ok {
			return false
		}
		if gate.CompareAndSwap(old, next) {
			return true
		}
	}
}

// clockSkewMillis is how far behind a worker's clock may be.
const clockSkewMillis = 100

// Quota limits the RELAYs of one allocation per second, with a burst of one second. The zero Quota
// is no limit.
type Quota struct {
	datagramCost uint32 // in units of 1/8 µs
	byteCost     uint64 // the same, times 2^byteCostBits
}

// byteCostBits are fraction bits: without floating point a program in the kernel computes the
// same. At 100 MB/s the cost of a byte is exact to 1/200,000; at 1 byte/s a datagram of 64 KiB
// does not overflow 64 bits.
const byteCostBits = 24

// maxCost is far above any burst, and its sum with a gate does not wrap.
const maxCost = 1 << 30

// A quota gate holds, for datagrams and for bytes, the time until which earlier messages use up
// the rate, each in 32 bits and units of 1/8 µs, which wrap after 537 s.
const (
	quotaUnitsPerMilli = 8000
	quotaBurst         = 1000 * quotaUnitsPerMilli
	quotaClockSkew     = clockSkewMillis * quotaUnitsPerMilli
)

// MaxQuotaDatagrams per second are one for each unit of the gate.
const MaxQuotaDatagrams = 1000 * quotaUnitsPerMilli

// NewQuota takes at most MaxQuotaDatagrams and bytes per second; zero is no bound.
func NewQuota(datagrams, bytes int) Quota {
	var q Quota
	if datagrams > 0 {
		q.datagramCost = uint32((quotaBurst + datagrams/2) / datagrams)
	}
	if bytes > 0 {
		q.byteCost = (quotaBurst<<byteCostBits + uint64(bytes)/2) / uint64(bytes)
	}
	return q
}

// Costs are those of a datagram in 1/8 µs, and of a byte in 2^-24 of that, for a program in the
// kernel. Zero of both: no limit.
func (q Quota) Costs() (datagram uint32, byte uint64) { return q.datagramCost, q.byteCost }

func (q Quota) cost(size int) (datagram, bytes uint32) {
	return q.datagramCost, uint32(min(q.byteCost*uint64(size)>>byteCostBits, maxCost))
}

// TakeBytes is [Activity.TakeQuota] for bytes alone and a gate that any goroutine may use.
func (q Quota) TakeBytes(gate *atomic.Uint32, size int, nowMillis int64) bool {
	return takeShared(gate, quotaClock(nowMillis), q.bytesCost(size), quotaBurst, quotaClockSkew)
}

// bytesCost rounds up, so that no more go than q says.
func (q Quota) bytesCost(size int) uint32 {
	return uint32(min((q.byteCost*uint64(size)+1<<byteCostBits-1)>>byteCostBits, maxCost))
}

func quotaClock(nowMillis int64) uint32 { return uint32(nowMillis * quotaUnitsPerMilli) }

// KeyedGates are gates by key in fixed memory: a set-associative table of words, each with a gate
// of 32 bits and 32 bits of its key's hash. A key keeps its word as long as its gate holds what
// was taken; no two keys share one. Any goroutine may use it.
type KeyedGates struct {
	sets  [][keyedWays]atomic.Uint64
	shift int
}

// keyedWays fill one cache line.
const keyedWays = 8

// NewKeyedGates returns 2^bits sets, of 64 bytes each.
func NewKeyedGates(bits int) *KeyedGates {
	return &KeyedGates{make([][keyedWays]atomic.Uint64, 1<<bits), 64 - bits}
}

// Take takes an event of the key with that hash. The rate's IntervalMicros is a multiple of 1000.
// It reports false as well if other keys use all gates of the set.
func (g *KeyedGates) Take(hash uint64, r Rate, nowMillis int64) bool {
	cost, burst := r.millis()
	return takeOf(g.sets[hash>>g.shift][:], uint32(hash), uint32(nowMillis), cost, burst, clockSkewMillis)
}

// TakeBytes is Take for size bytes and the bytes of q.
func (g *KeyedGates) TakeBytes(hash uint64, q Quota, size int, nowMillis int64) bool {
	return takeOf(g.sets[hash>>g.shift][:], uint32(hash), quotaClock(nowMillis), q.bytesCost(size), quotaBurst, quotaClockSkew)
}

// takeOf takes from the gate with a tag in a set, or from a new one in the place of an idle one.
// It reports false if none is idle.
func takeOf(set []atomic.Uint64, tag, now, cost, burst, skew uint32) bool {
	for {
		var way *atomic.Uint64
		var old uint64
		gate := now
		for i := range set {
			word := set[i].Load()
			if word != 0 && uint32(word>>32) == tag {
				way, old, gate = &set[i], word, uint32(word)
				break
			}
			if way == nil && (word == 0 || isIdle(uint32(word), now, burst, skew)) {
				way, old = &set[i], word
			}
		}
		if way == nil {
			return false
		}
		next, ok := takeCost(gate, now, cost, burst, skew)
		if !ok {
			return false
		}
		if way.CompareAndSwap(old, uint64(tag)<<32|uint64(next)) {
			return true
		}
	}
}
