package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// The budgets of ERROR replies. A relay answers senders that it does not know, so
// its replies must be useless for reflection to a forged source.
var (
	// processRate is about 8 Mbit/s.
	processRate = table.Rate{IntervalMicros: 50, Burst: 20_000}
	// liveProcessRate: ERROR 3 about live allocations, and livePrefixRate of these to
	// one source prefix, behind which many players may be.
	liveProcessRate = table.Rate{IntervalMicros: 20, Burst: 50_000}
	livePrefixRate  = table.Rate{IntervalMicros: 20_000, Burst: 100}
	// recoverAllocationRate: ERROR 3 about one allocation of the state file, so that an
	// attacker that knows one id does not use up the rate of all, see recoverRate.
	recoverAllocationRate = table.Rate{IntervalMicros: 1_000, Burst: 1000}
	// verifyRate and verifyPrefixRate: checks of signatures for one allocation while a worker is
	// under load, and from one prefix for it.
	verifyRate       = table.Rate{IntervalMicros: 5_000, Burst: 200}
	verifyPrefixRate = table.Rate{IntervalMicros: 50_000, Burst: 20}
)

type budgetRates struct {
	// prefix: ERRORs to one source prefix (an IPv4 address, an IPv6 /56).
	prefix table.Rate
	// mismatch: ERROR 3 that names one live allocation. Roaming depends on it, so it is
	// far above the rate at which players roam: an attacker that knows the id does not
	// use it up with a few datagrams. mismatchPrefix: the same from one source prefix.
	mismatch, mismatchPrefix table.Rate
	// rebind: ERROR 3 to the network to which the allocation is bound.
	rebind table.Rate
	// excess: bytes beyond the allowance of a limited path, see rules.go: of a path, of its
	// routing prefix, and of all.
	excessPath, excessPrefix, excessAll table.Quota
	// hostLinks: new links of a host. joinerLinks: those of a joiner, so that a player
	// that connects and disconnects in a loop does not use up its host's.
	hostLinks, joinerLinks table.Rate
}

var defaultRates = budgetRates{
	prefix:         table.Rate{IntervalMicros: 100_000, Burst: 20}, // coturn's default for its 401
	mismatch:       table.Rate{IntervalMicros: 1_000, Burst: 1000},
	mismatchPrefix: table.Rate{IntervalMicros: 200_000, Burst: 5},
	rebind:         table.Rate{IntervalMicros: 50_000, Burst: 20},
	excessPath:     table.NewQuota(0, 256_000),
	// 80 players of one match, see TestCrowdOnLimitedPaths: 4.5 MB/s.
	excessPrefix: table.NewQuota(0, 5_000_000),
	excessAll:    table.NewQuota(0, 64_000_000),
	hostLinks:    table.Rate{IntervalMicros: 50_000, Burst: 20},
	joinerLinks:  table.Rate{IntervalMicros: 1_000_000, Burst: 3},
}

const (
	// recoverShare: ERROR 3 may go to each client of the previous run within this part of
	// the recovery window. UTP 2.x binds again on the first one; the rest of the window is
	// for lost datagrams, and for clients that take three of them and do not bind.
	recoverShare = 3
	// maxRecoverPerSecond costs control a third of a processor: it rebuilds and binds one
	// allocation in 3.3 µs.
	minRecoverPerSecond, maxRecoverPerSecond = 20_000, 100_000
)

// recoverRate has a burst of a tenth of a second, since the BINDs that it causes arrive together.
// The window is in milliseconds.
func recoverRate(records int, window int64) table.Rate {
	perSecond := int64(minRecoverPerSecond)
	if window > 0 {
		perSecond = min(max(perSecond, int64(records)*1000*recoverShare/window), maxRecoverPerSecond)
	}
	return table.Rate{IntervalMicros: 1_000_000 / perSecond, Burst: perSecond / 10}
}

// endpointRate: one ERROR of one code to one endpoint in a time that is longer than most
// round trips, so that a client uses one nonce for one change of address.
var endpointRate = table.Rate{IntervalMicros: 200_000, Burst: 1}

const (
	// endpointBits: 2^endpointBits sets of gates of endpointRate, 256 KiB. At the highest rate of
	// a recovery, one endpoint in eight finds its set full: better a reply too few than one too
	// many.
	endpointBits = 12
	// excessBits: the same for budgetRates.excessPrefix, 64 KiB. At budgetRates.excessAll a full
	// set is a matter of one in a million.
	excessBits = 10
	// starvedBits: the same for starvedRate, 16 KiB, or 2,048 receivers.
	starvedBits = 8
)

// prefixGates are chosen by a keyed hash, as allocationGates are. Keys with the same gate share
// its budget.
const prefixGates = 4096

const (
	allocationGateBits = 13
	allocationGates    = 1 << allocationGateBits
)

// budgets are shared by all workers and control. Every word is atomic.
type budgets struct {
	unlimited                           bool
	secret                              uint64
	rates                               budgetRates
	recoverRate                         table.Rate // fixed before Run
	_                                   [64]byte
	process, liveProcess, recovered     atomic.Uint64
	excessAll                           atomic.Uint32
	_                                   [36]byte
	prefixes, livePrefixes              [prefixGates]atomic.Uint64
	endpoints                           *table.KeyedGates              // by endpoint and code
	verifies, rebinds                   [allocationGates]atomic.Uint64 // by allocation
	prefixVerifies, boundPrefixVerifies [allocationGates]atomic.Uint64 // by allocation and prefix
	prefixMismatches                    [allocationGates]atomic.Uint64 // by allocation and prefix
	recoveries                          [allocationGates]atomic.Uint64 // by allocation
	qos                                 [prefixGates]atomic.Uint64     // of QoS probes, by prefix
	excessPrefixes                      *table.KeyedGates              // by routing prefix
	starved                             *table.KeyedGates              // by endpoint, of reports
	spoofGuard                          spoofGuard
}

func newBudgets(unlimited bool) *budgets {
	b := &budgets{
		unlimited: unlimited, rates: defaultRates, recoverRate: recoverRate(0, 0),
		endpoints: table.NewKeyedGates(endpointBits), excessPrefixes: table.NewKeyedGates(excessBits),
		starved: table.NewKeyedGates(starvedBits),
	}
	var seed [8]byte
	rand.Read(seed[:])
	b.secret = binary.LittleEndian.Uint64(seed[:])
	return b
}

func (b *budgets) takeError(to endpoint.Endpoint, code proto.ErrorCode, now int64) bool {
	return b.unlimited || b.takeEndpoint(to, code, now) && b.takePrefix(to, now) && b.takeProcess(now)
}

func (b *budgets) takeEndpoint(to endpoint.Endpoint, code proto.ErrorCode, now int64) bool {
	return b.endpoints.Take(b.endpointHash(to, code), endpointRate, now)
}

func (b *budgets) takePrefix(to endpoint.Endpoint, now int64) bool {
	return b.rates.prefix.Take(&b.prefixes[b.prefixIndex(to)], now)
}

func (b *budgets) takeProcess(now int64) bool { return processRate.Take(&b.process, now) }

// takeRecover has no limit by prefix: all players behind one address come back at once.
func (b *budgets) takeRecover(id proto.AllocationID, now int64) bool {
	return recoverAllocationRate.Take(&b.recoveries[b.allocationIndex(id, 0)], now) && b.recoverRate.Take(&b.recovered, now)
}

// mayVerify reports whether a worker under load may check a signature. BINDs from
// the prefix to which the allocation is bound have a budget of their own, so that an
// attacker with captured connection data cannot keep the owner from binding; and a
// BIND that the allocation's own budget refuses takes nothing from shared ones.
func (b *budgets) mayVerify(now int64, from endpoint.Endpoint, id proto.AllocationID, e *table.Entry) bool {
	prefix := b.prefixIndex(from)
	both := b.allocationIndex(id, prefix)
	if !e.Endpoint.IsZero() && b.prefixIndex(e.Endpoint) == prefix {
		return verifyPrefixRate.Take(&b.boundPrefixVerifies[both], now)
	}
	return verifyPrefixRate.Allows(&b.prefixVerifies[both], now) &&
		verifyRate.Take(&b.verifies[b.allocationIndex(id, 0)], now) &&
		verifyPrefixRate.Take(&b.prefixVerifies[both], now)
}

func (b *budgets) rebindGate(id proto.AllocationID) *atomic.Uint64 {
	return &b.rebinds[b.allocationIndex(id, 0)]
}

func (b *budgets) takeLivePrefix(from endpoint.Endpoint, id proto.AllocationID, now int64) bool {
	prefix := b.prefixIndex(from)
	return b.rates.mismatchPrefix.Take(&b.prefixMismatches[b.allocationIndex(id, prefix)], now) &&
		livePrefixRate.Take(&b.livePrefixes[prefix], now)
}

// A private or loopback address says nothing of a network: all players may have one, behind a
// container's proxy.
func (b *budgets) takeExcess(to endpoint.Endpoint, size int, now int64) bool {
	return (isPrivateSource(to) || isLoopbackSource(to) ||
		b.excessPrefixes.TakeBytes(b.endpointHash(to.RoutingPrefix(), 0), b.rates.excessPrefix, size, now)) &&
		b.rates.excessAll.TakeBytes(&b.excessAll, size, now)
}

// With prefix 0 it is the gate of all prefixes.
func (b *budgets) allocationIndex(id proto.AllocationID, prefix uint64) uint64 {
	return endpoint.Mix64((binary.LittleEndian.Uint64(id[:8])^b.secret)+prefix) >> (64 - allocationGateBits)
}

func (b *budgets) endpointHash(ep endpoint.Endpoint, code proto.ErrorCode) uint64 {
	x := endpoint.Mix64(ep.Hi^b.secret) ^ ep.Lo
	return endpoint.Mix64(endpoint.Mix64(x) ^ ep.Tail ^ uint64(code)<<48)
}

func (b *budgets) prefixIndex(ep endpoint.Endpoint) uint64 {
	network := ep.Network()
	return endpoint.Mix64((network.Hi|network.Lo)^b.secret) >> 52
}

// forgedRate: a client that roams sends a few such messages, an attacker that tries all source
// ports thousands.
var forgedRate = table.Rate{IntervalMicros: 10_000, Burst: 100}

const (
	suspectTicks = 10_000 / table.TickMillis
	confirmTicks = 1000 / table.TickMillis

	spoofGates = 4096
)

// spoofGuard detects allocations under a spoofing attack. Two allocations with the same gate share
// its count, so one may be suspect too early. Every word is atomic.
type spoofGuard [spoofGates]struct {
	gate  atomic.Uint64
	until atomic.Uint32 // the last tick in which allocations with this gate are suspect
}

// In a flood noteForged writes once a tick, so that workers share the gate's line.
func (g *spoofGuard) noteForged(h table.Handle, now int64) {
	s := &g[spoofGate(h)]
	if until := uint32(tick(now) + suspectTicks); !forgedRate.Take(&s.gate, now) && s.until.Load() < until {
		s.until.Store(until)
	}
}

func (g *spoofGuard) isSuspect(h table.Handle, now int64) bool {
	return uint32(tick(now)) <= g[spoofGate(h)].until.Load()
}

// The next owner of the slot has another gate.
func spoofGate(h table.Handle) uint32 {
	return (h.Slot() + uint32(h)*64) % spoofGates
}
