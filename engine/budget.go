package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/sock"
)

// The budgets of ERROR replies. A relay answers strangers, and its answers must
// not be worth the trouble of forging a source.
var (
	// prefixRate: ERRORs to one source prefix (an IPv4 address, an IPv6 /56);
	// coturn's default for its 401.
	prefixRate = alloc.Rate{Interval: 100_000, Burst: 20}
	// processRate: ERRORs of the whole process, about 8 Mbit/s.
	processRate = alloc.Rate{Interval: 50, Burst: 20_000}
	// mismatchRate: ERROR 3 that names one live allocation. It is apart from
	// the others, because roaming lives on it.
	mismatchRate = alloc.Rate{Interval: 200_000, Burst: 5}
)

// prefixGates is the number of gates that prefixes share by a secret hash. Two
// prefixes that share one share its budget.
const prefixGates = 4096

// budgets hold the gates of all workers and control. Every word is an atomic.
type budgets struct {
	unlimited bool
	secret    uint64
	process   atomic.Uint64
	_         [56]byte
	prefixes  [prefixGates]atomic.Uint64
}

func newBudgets(unlimited bool) *budgets {
	b := &budgets{unlimited: unlimited}
	var seed [8]byte
	rand.Read(seed[:])
	b.secret = binary.LittleEndian.Uint64(seed[:])
	return b
}

// take reports whether an ERROR may go to an endpoint now.
func (b *budgets) take(to sock.Endpoint, now int64) bool {
	if b.unlimited {
		return true
	}
	return prefixRate.Take(&b.prefixes[b.gate(to)], now) && processRate.Take(&b.process, now)
}

// gate returns the gate of an endpoint's prefix.
func (b *budgets) gate(ep sock.Endpoint) uint64 {
	prefix := ep.Lo
	if ep.Kind() == sock.KindUDP6 {
		prefix = ep.Hi &^ 0xFF
	}
	x := (prefix ^ b.secret) * 0x9E3779B97F4A7C15
	return (x ^ x>>29) * 0xBF58476D1CE4E5B9 >> 52
}
