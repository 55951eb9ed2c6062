package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// The budgets of ERROR replies. A relay answers strangers, and its answers must
// not be worth the trouble of forging a source.
var (
	// prefixRate: ERRORs to one source prefix (an IPv4 address, an IPv6 /56);
	// coturn's default for its 401.
	prefixRate = table.Rate{Interval: 100_000, Burst: 20}
	// processRate: ERRORs of the whole process, about 8 Mbit/s.
	processRate = table.Rate{Interval: 50, Burst: 20_000}
	// mismatchRate: ERROR 3 that names one live allocation. It is apart from
	// the others, because roaming lives on it.
	mismatchRate = table.Rate{Interval: 200_000, Burst: 5}
	// verifyRate: signatures of BINDs that are checked for one allocation while
	// a worker is under load, and for one prefix of those.
	verifyRate       = table.Rate{Interval: 5_000, Burst: 200}
	verifyPrefixRate = table.Rate{Interval: 50_000, Burst: 20}
)

// endpointMillis is how long an endpoint gets no second ERROR of one code: longer
// than most round trips, so a client does not spend two nonces on one move.
const endpointMillis = 200

// prefixGates is the number of gates that prefixes share by a secret hash. Two
// prefixes that share one share its budget.
const prefixGates = 4096

// verifyGates is the number of gates that allocations share for signatures, by
// the same hash.
const verifyGates = 1 << 13

// budgets hold the gates of all workers and control. Every word is an atomic.
type budgets struct {
	unlimited                           bool
	secret                              uint64
	perPrefix                           table.Rate // prefixRate; a simulation has less
	process                             atomic.Uint64
	_                                   [56]byte
	prefixes                            [prefixGates]atomic.Uint64
	endpoints                           recentKeys                 // by endpoint and code
	verifies                            [verifyGates]atomic.Uint64 // by allocation
	prefixVerifies, boundPrefixVerifies [verifyGates]atomic.Uint64 // by allocation and prefix
}

func newBudgets(unlimited bool) *budgets {
	b := &budgets{unlimited: unlimited, perPrefix: prefixRate}
	var seed [8]byte
	rand.Read(seed[:])
	b.secret = binary.LittleEndian.Uint64(seed[:])
	return b
}

// takeError reports whether an ERROR may go to an endpoint now.
func (b *budgets) takeError(to endpoint.Endpoint, code proto.ErrorCode, now int64) bool {
	return b.unlimited || b.takeEndpoint(to, code, now) && b.takePrefix(to, now) && b.takeProcess(now)
}

func (b *budgets) takeEndpoint(to endpoint.Endpoint, code proto.ErrorCode, now int64) bool {
	return b.endpoints.add(b.endpointHash(to, code), now, endpointMillis)
}

func (b *budgets) takePrefix(to endpoint.Endpoint, now int64) bool {
	return b.perPrefix.Take(&b.prefixes[b.prefixIndex(to)], now)
}

func (b *budgets) takeProcess(now int64) bool { return processRate.Take(&b.process, now) }

// mayVerify reports whether a worker under load may check a signature. Those
// from the prefix where the allocation is bound do not count against the rest,
// so that a stranger with a good seal cannot keep its owner from binding; and
// what the allocation's own limit refuses draws nothing that others share.
func (b *budgets) mayVerify(now int64, from endpoint.Endpoint, id proto.AllocationID, e *table.Entry) bool {
	at := binary.LittleEndian.Uint64(id[:8]) ^ b.secret
	prefix := b.prefixIndex(from)
	both := mix64(at+prefix) >> (64 - 13)
	if !e.Endpoint.IsZero() && b.prefixIndex(e.Endpoint) == prefix {
		return verifyPrefixRate.Take(&b.boundPrefixVerifies[both], now)
	}
	return verifyPrefixRate.Allows(&b.prefixVerifies[both], now) &&
		verifyRate.Take(&b.verifies[mix64(at)>>(64-13)], now) &&
		verifyPrefixRate.Take(&b.prefixVerifies[both], now)
}

func (b *budgets) endpointHash(ep endpoint.Endpoint, code proto.ErrorCode) uint64 {
	x := mix64(ep.Hi^b.secret) ^ ep.Lo
	return mix64(mix64(x) ^ ep.Tail ^ uint64(code)<<48)
}

// scatter spreads what x says over its upper bits.
func mix64(x uint64) uint64 {
	x *= 0x9E3779B97F4A7C15
	return (x ^ x>>29) * 0xBF58476D1CE4E5B9
}

// gate returns the gate of an endpoint's prefix.
func (b *budgets) prefixIndex(ep endpoint.Endpoint) uint64 {
	prefix := ep.Lo
	if ep.Kind() == endpoint.KindUDP6 {
		prefix = ep.Hi &^ 0xFF
	}
	return mix64(prefix^b.secret) >> 52
}

// The size of a [recent]: 2^recentBits sets of recentWays each. At a thousand
// keys a second, remembered for 200 ms each, a fifth one in a set is a matter of
// one in a hundred million; at the budget of the whole process, of two in a
// thousand.
const (
	recentBits = 13
	recentWays = 4
)

// recentTagBits are the bits of a key's hash that tell it from others of its set.
const recentTagBits = 24

// recent remembers for a while which keys were seen, in a fixed space: sets of
// four, in which each word has the end of a while in milliseconds and a part of
// its key's hash. All words are atomics; anybody may call.
type recentKeys [1 << recentBits][recentWays]atomic.Uint64

// first reports whether a key, by its hash, is seen for the first time in
// millis, and remembers it then. It also reports false when the set is full of
// others: better silent than twice.
func (r *recentKeys) add(hash uint64, now, millis int64) bool {
	set := &r[hash>>(64-recentBits)]
	tag := hash & (1<<recentTagBits - 1)
	for {
		var free *atomic.Uint64
		var was uint64
		for i := range set {
			word := set[i].Load()
			over := int64(word>>recentTagBits) <= now
			if !over && word&(1<<recentTagBits-1) == tag {
				return false
			}
			if over && free == nil {
				free, was = &set[i], word
			}
		}
		if free == nil {
			return false
		}
		if free.CompareAndSwap(was, uint64(now+millis)<<recentTagBits|tag) {
			return true
		}
	}
}

// wrongRate is how many messages in the name of one allocation may come from
// endpoints to which it is not bound before it counts as spoofed at. A client
// that roams sends a few; who looks for its port by trying all of them sends
// thousands.
var forgedRate = table.Rate{Interval: 10_000, Burst: 100}

const (
	// spoofedMillis is for how long an allocation counts as spoofed at after the
	// last message that was too many.
	suspectMillis = 10_000
	// lingerTicks is how long a CLOSE or DISCONNECT of such an allocation waits
	// for its owner to go on as if nothing had been: 1 s.
	confirmTicks = 1000 / table.TickMillis

	spoofGates = 4096
)

// spoofGuard notices allocations in whose name somebody else sends. Two that
// share a gate share its count, which makes the relay careful early, no more.
// Every word is an atomic; any goroutine may use it.
type spoofGuard struct {
	gates [spoofGates]atomic.Uint64
	until [spoofGates]atomic.Int64 // ms
}

// wrong counts a message in the name of h from an endpoint that is not h's.
func (g *spoofGuard) noteForged(h table.Handle, now int64) {
	if i := spoofGate(h); !forgedRate.Take(&g.gates[i], now) {
		g.until[i].Store(now + suspectMillis)
	}
}

// suspects reports whether h is being spoofed at.
func (g *spoofGuard) isSuspect(h table.Handle, now int64) bool {
	return now < g.until[spoofGate(h)].Load()
}

// spoofGate keeps the next owner of a slot apart from the last one.
func spoofGate(h table.Handle) uint32 {
	return (h.Slot() + uint32(h)*64) % spoofGates
}
