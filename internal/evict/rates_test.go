package evict

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// modelRates counts events that each network still has, as fractions, in simulated time.
type modelRates struct {
	perSecond, burst float64
	tokens           map[networkKey]float64
	last             time.Time
}

func (m *modelRates) share(level int) float64 {
	return float64(levels[len(levels)-1].weight) / float64(levels[level].weight)
}

func (m *modelRates) take(address netip.Prefix, now time.Time) (missing float64) {
	for key := range m.tokens {
		share := m.share(key.level)
		m.tokens[key] = min(m.tokens[key]+now.Sub(m.last).Seconds()*m.perSecond*share, m.burst*share)
	}
	m.last = now
	for level := range levels {
		key := networkKey{containing(address, level), level}
		if _, ok := m.tokens[key]; !ok {
			m.tokens[key] = m.burst * m.share(level)
		}
		missing = max(missing, 1-m.tokens[key])
	}
	return missing
}

func (m *modelRates) add(address netip.Prefix, n float64) {
	for level := range levels {
		key := networkKey{containing(address, level), level}
		m.tokens[key] = min(m.tokens[key]+n, m.burst*m.share(level))
	}
}

// TestRates compares with token buckets that are never removed, in simulated time.
func TestRates(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	r := &Rates{PerSecond: 5, Burst: 10}
	now := time.Unix(1000, 0)
	m := &modelRates{perSecond: 5, burst: 10, tokens: make(map[networkKey]float64), last: now}
	taken, refused := 0, 0
	for n := range 8_000 {
		busy := n/2000%2 == 0
		now = now.Add(time.Duration(rnd.IntN(1_000_000)))
		if !busy {
			now = now.Add(time.Duration(rnd.IntN(40_000_000)))
		}
		address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rnd.IntN(2)), byte(rnd.IntN(3)), byte(rnd.IntN(1 + rnd.IntN(12)))}), 32)
		missing := m.take(address, now)
		if math.Abs(missing) < 1e-3 {
			now = now.Add(time.Millisecond) // on the edge, where rounding decides
			missing = m.take(address, now)
		}
		wait := r.Take(address, now)
		if (wait > 0) != (missing > 0) {
			t.Fatalf("step %d: %v has to wait %v, %v events are missing", n, address, wait, missing)
		}
		if wait > 0 {
			refused++
			continue
		}
		taken++
		m.add(address, -1)
		if rnd.IntN(4) == 0 {
			r.Return(address, now)
			m.add(address, 1)
		}
	}
	if taken < 1000 || refused < 500 {
		t.Errorf("%d taken, %d refused", taken, refused)
	}
}

// TestRatesForget: networks without events take no memory for long.
func TestRatesForget(t *testing.T) {
	t.Parallel()
	r := &Rates{PerSecond: 10, Burst: 10}
	now := time.Unix(1000, 0)
	for i := range 100_000 {
		now = now.Add(time.Millisecond)
		r.Take(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i >> 16), byte(i >> 8), byte(i), 1}), 32), now)
	}
	if len(r.full) > 2*minSweep {
		t.Errorf("%d networks are left", len(r.full))
	}
	r = &Rates{PerSecond: 10, Burst: 10}
	address := netip.MustParsePrefix("2001:db8:1:100::/56")
	r.Take(address, now)
	r.Return(address, now)
	if r.Return(address, now); len(r.full) != 0 {
		t.Errorf("%d networks are left after the event was taken back", len(r.full))
	}
}
