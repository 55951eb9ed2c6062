package table

import (
	"math"
	"math/big"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func quotaTable(t *testing.T) (*Table, Handle) {
	t.Helper()
	table := NewTable(1)
	return table, reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
}

// roundMillis is the time in milliseconds after which the clock of a quota gate wraps.
const roundMillis = (1 << 32) / quotaUnitsPerMilli // 536,870

// TestQuotaRates: of ten times the rate, exactly the rate passes,
// within 1 %, also while the clock of the gate wraps.
func TestQuotaRates(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for _, c := range []struct {
		name             string
		datagrams, bytes int
		size             int
		perSecond        float64 // datagrams of that size
	}{
		{"joiner, datagrams", 1000, 512 << 10, 100, 1000},
		{"joiner, bytes", 1000, 512 << 10, 1438, (512 << 10) / 1438.0},
		{"host, datagrams", 12_000, 8 << 20, 60, 12_000},
		{"host, bytes", 12_000, 8 << 20, 1438, (8 << 20) / 1438.0},
		{"host, smallest, bytes alone", 0, 8 << 20, 500, (8 << 20) / 500.0},
		{"one", 1, 0, 1438, 1},
		{"seven", 7, 0, 38, 7},
		{"datagrams alone", 50_000, 0, 1472, 50_000},
		{"few bytes", 0, 3000, 1472, 3000.0 / 1472},
	} {
		t.Run(c.name, func(t *testing.T) {
			const seconds = 30
			q, each := NewQuota(c.datagrams, c.bytes), max(1, int(c.perSecond/100))
			for _, start := range []int64{60_000, roundMillis - seconds*500, 5*roundMillis - 1} {
				table, h := quotaTable(t)
				passed := 0
				for now := start; now < start+seconds*1000; now++ {
					for range each {
						if table.Activity(h).TakeQuota(q, c.size, now) {
							passed++
						}
					}
				}
				// The bucket is full at first, or empty if the clock is about to go round.
				least, most := c.perSecond*(seconds-1)*0.99-1, c.perSecond*(seconds+1)*1.01+1
				if float64(passed) < least || float64(passed) > most {
					t.Errorf("from %d ms: %d in %d s, want %.1f to %.1f", start, passed, seconds, least, most)
				}
				if start == 60_000 {
					if want := c.perSecond * (seconds + 1); math.Abs(float64(passed)-want) > want*0.01+1 {
						t.Errorf("%d in %d s and a burst, want %.1f within 1 %%", passed, seconds, want)
					}
				}
			}
		})
	}
}

// TestQuotaBurst: an idle owner may relay the quota of a second at once, and nothing more.
func TestQuotaBurst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ datagrams, bytes, size, burst int }{
		{1000, 0, 38, 1000}, {0, 512 << 10, 1024, 512}, {1000, 512 << 10, 1024, 512}, {1000, 512 << 10, 100, 1000},
		{1, 0, 1472, 1}, {0, 1472, 1472, 1}, {0, 1471, 1472, 0},
		// A price that would not fit into 32 bits is too much, not next to nothing.
		{0, 2000, 1472, 1}, {0, 1400, 1472, 0}, {0, 600, 1472, 0}, {0, 1, 1472, 0}, {0, 1, 38, 0},
	} {
		q := NewQuota(c.datagrams, c.bytes)
		table, h := quotaTable(t)
		for _, quiet := range []int64{0, 1000, 3_600_000} {
			now, passed := 60_000+quiet, 0
			for range c.burst + 100 {
				if table.Activity(h).TakeQuota(q, c.size, now) {
					passed++
				}
			}
			if passed != c.burst {
				t.Errorf("%+v: %d at once after %d ms, want %d", c, passed, quiet, c.burst)
			}
		}
	}
}

// TestQuotaOfNewAllocation: an allocation may relay at once, also shortly before its gate wraps.
func TestQuotaOfNewAllocation(t *testing.T) {
	t.Parallel()
	q := NewQuota(1000, 512<<10)
	table := NewTable(1)
	for now := int64(roundMillis - 1500); now < roundMillis+1500; now++ {
		h, err := table.Reserve(Spec{ID: testID(1), Role: RoleHost}, Tick(now/TickMillis))
		if err != nil {
			t.Fatal(err)
		}
		if !table.Activity(h).TakeQuota(q, 102, now) {
			t.Fatalf("refused %d ms before the wrap", roundMillis-now)
		}
		table.End(h)
		table.Recycle(h)
	}
}

// TestQuotaCost: the cost is the exact quotient, rounded down, or one unit more or less.
func TestQuotaCost(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 100_000 {
		perSecond, size := 1+r.IntN(1<<r.IntN(30)), r.IntN(1<<16)
		exact := new(big.Int).Div(new(big.Int).Mul(big.NewInt(quotaBurst), big.NewInt(int64(size))), big.NewInt(int64(perSecond))).Int64()
		if _, got := NewQuota(0, perSecond).cost(size); max(int64(got)-exact, exact-int64(got)) > 1 && exact < maxCost {
			t.Fatalf("%d bytes at %d/s cost %d, want %d", size, perSecond, got, exact)
		} else if exact >= maxCost && got != maxCost {
			t.Fatalf("%d bytes at %d/s cost %d, want the most, %d", size, perSecond, got, maxCost)
		}
	}
}

// TestQuotaRefusalIsFree: a drop for bytes costs no datagram, and the other way round.
func TestQuotaRefusalIsFree(t *testing.T) {
	t.Parallel()
	table, h := quotaTable(t)
	q := NewQuota(10, 1000)
	for range 50 {
		table.Activity(h).TakeQuota(q, 1001, 60_000)
	}
	for i := range 10 {
		if !table.Activity(h).TakeQuota(q, 100, 60_000) {
			t.Errorf("datagram %d of 10 does not pass after others that were too large", i+1)
		}
	}
	for range 50 {
		table.Activity(h).TakeQuota(q, 1, 60_000)
	}
	if !table.Activity(h).TakeQuota(q, 1000, 61_000) {
		t.Error("a second later not all bytes are there")
	}
}

func TestQuotaUnlimited(t *testing.T) {
	t.Parallel()
	table, h := quotaTable(t)
	for _, c := range []struct {
		q    Quota
		size int
	}{{Quota{}, 1472}, {NewQuota(0, 0), 1472}, {NewQuota(-1, -5), 1472}, {NewQuota(0, 1000), 0}} {
		for i := range 100_000 {
			if !table.Activity(h).TakeQuota(c.q, c.size, 60_000) {
				t.Fatalf("%+v: number %d of %d bytes does not pass", c.q, i, c.size)
			}
		}
	}
}

// TestQuotaClockGoesRound: after any silence the bucket is full, or, in one
// second of the 537 in which the clock goes round, it may be short. It never
// holds more, and it fills at its rate.
func TestQuotaClockGoesRound(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	q := NewQuota(100, 0)
	const start = 60_000
	full := 0
	for quiet := int64(1000); quiet < 3*roundMillis; quiet += 377 {
		table, h := quotaTable(t)
		for range 200 {
			table.Activity(h).TakeQuota(q, 100, start)
		}
		passed := 0
		for range 200 {
			if table.Activity(h).TakeQuota(q, 100, start+quiet) {
				passed++
			}
		}
		if passed > 100 {
			t.Fatalf("%d at once after %d ms, want 100 at the most", passed, quiet)
		}
		if passed == 100 {
			full++
			continue
		}
		if after := quiet % roundMillis; quiet < roundMillis-1000 || after > 1000 && after < roundMillis-1000 {
			t.Fatalf("%d at once after %d ms, want 100", passed, quiet)
		}
		later := 0
		for now := start + quiet + 1; now <= start+quiet+1200; now++ {
			if table.Activity(h).TakeQuota(q, 100, now) {
				later++
			}
		}
		if later < 100 {
			t.Errorf("%d in the 1.2 s after a silence of %d ms, want 100", later, quiet)
		}
	}
	if full < 4000 {
		t.Errorf("the bucket was full after %d silences only", full)
	}
}

// TestQuotaOfLateWorker: a worker may be late to whose socket a player has roamed.
func TestQuotaOfLateWorker(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	q := NewQuota(1000, 0)
	const start, millis, behind = 60_000, 20_000, 100
	table, h := quotaTable(t)
	passed := 0
	for now := int64(start); now < start+millis; now++ {
		for range 3 {
			if table.Activity(h).TakeQuota(q, 100, now-r.Int64N(behind)) {
				passed++
			}
		}
	}
	if most := 1000 * (millis + behind + 1000) / 1000; passed > most || passed < most*9/10 {
		t.Errorf("%d pass, want %d at the most and not many fewer", passed, most)
	}
}

// TestQuotaOfSeveralWorkers: those that draw at once may each count a datagram
// once for all, but no worker gets more than the whole.
func TestQuotaOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	const workers, each = 4, 1000
	table, h := quotaTable(t)
	q := NewQuota(each, 0)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range 5 * each {
				if table.Activity(h).TakeQuota(q, 100, 60_000) {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n < each || n > workers*each {
		t.Errorf("%d pass, want %d, and %d at the most", n, each, workers*each)
	}
	if table.Activity(h).TakeQuota(q, 100, 60_000) {
		t.Error("one more passes after all")
	}
}

func TestQuotaIsPerAllocation(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	q := NewQuota(10, 0)
	a, b := reserve(t, table, Spec{ID: testID(1), Role: RoleHost}), reserve(t, table, Spec{ID: testID(2), Role: RoleJoiner})
	for range 20 {
		table.Activity(a).TakeQuota(q, 100, 60_000)
	}
	if !table.Activity(b).TakeQuota(q, 100, 60_000) {
		t.Error("one allocation pays for another")
	}
	table.End(a)
	table.Recycle(a)
	if !table.Activity(reserve(t, table, Spec{ID: testID(3), Role: RoleHost})).TakeQuota(q, 100, 60_000) {
		t.Error("the next owner of a slot pays for the last one")
	}
}
