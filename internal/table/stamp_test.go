package table

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestContract3StampsAreWrittenOnChangeOnly: a worker that relays a thousand
// datagrams within a tick takes the line away from the others once.
func TestContract3StampsAreWrittenOnChangeOnly(t *testing.T) {
	t.Parallel()
	var s atomic.Uint32
	for _, c := range []struct {
		tick  Tick
		wrote bool
		want  uint32
	}{
		{5, true, 5}, {5, false, 5}, {4, false, 5}, {0, false, 5}, {6, true, 6}, {6, false, 6}, {5, false, 6},
	} {
		if wrote := stamp(&s, c.tick); wrote != c.wrote || s.Load() != c.want {
			t.Errorf("tick %d: wrote %v, stamp %d, want %v, %d", c.tick, wrote, s.Load(), c.wrote, c.want)
		}
	}
}

func TestContract3StampsNeverGoBack(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	h, err := table.Reserve(Spec{ID: testID(1), Role: RoleHost}, 10)
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		do            func(*Activity, Tick)
		tick          Tick
		heard, active Tick
	}{
		{(*Activity).RecordActivity, 9, 10, 10},
		{(*Activity).RecordReceive, 9, 10, 10},
		{(*Activity).RecordActivity, 12, 10, 12},
		{(*Activity).RecordReceive, 11, 11, 12},
		{(*Activity).RecordReceive, 13, 13, 13},
		{(*Activity).RecordActivity, 12, 13, 13},
	}
	for i, s := range steps {
		s.do(table.Activity(h), s.tick)
		if heard, active := table.Activity(h).LastSeen(); heard != s.heard || active != s.active {
			t.Errorf("step %d: stamps %d, %d, want %d, %d", i, heard, active, s.heard, s.active)
		}
	}
	// A new owner of the slot does not inherit them.
	table.End(h)
	table.Recycle(h)
	h = reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	if heard, active := table.Activity(h).LastSeen(); heard != 1 || active != 1 {
		t.Errorf("stamps of a fresh allocation %d, %d, want 1", heard, active)
	}
}

// TestContract3LatestStampStays: of stamps that workers write at once, none is
// lost to an earlier one.
func TestContract3LatestStampStays(t *testing.T) {
	t.Parallel()
	const workers, ticks = 4, 200_000
	table := NewTable(0)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	var wg sync.WaitGroup
	var clock atomic.Uint32
	for range workers {
		wg.Go(func() {
			for {
				now := Tick(clock.Add(1))
				if now > ticks {
					return
				}
				table.Activity(h).RecordReceive(now)
				if heard, active := table.Activity(h).LastSeen(); heard < now || active < now {
					t.Errorf("stamps %d, %d after tick %d", heard, active, now)
					return
				}
			}
		})
	}
	wg.Wait()
	if heard, active := table.Activity(h).LastSeen(); heard != ticks || active != ticks {
		t.Errorf("stamps %d, %d, want %d", heard, active, ticks)
	}
}

func TestStranger(t *testing.T) {
	t.Parallel()
	const wrap = 1<<32 - 60_000 // when 32 bits of milliseconds begin again
	type step struct {
		ms   int64
		peer int
		told bool
	}
	cases := map[string][]step{
		"once a second":  {{0, 1, true}, {0, 1, false}, {999, 1, false}, {1000, 1, true}, {1999, 1, false}, {2000, 1, true}},
		"by peer":        {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 1, false}, {3, 2, false}, {3, 3, false}},
		"no fourth peer": {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 4, false}, {999, 4, false}, {1000, 4, true}, {1000, 1, false}, {1001, 1, true}},
		"late worker":    {{5000, 1, true}, {4999, 1, false}, {4001, 1, false}, {5999, 1, false}, {6000, 1, true}},
		"32 bits":        {{wrap - 1, 1, true}, {wrap, 1, false}, {wrap + 998, 1, false}, {wrap + 999, 1, true}},
		"after long":     {{0, 1, true}, {1 << 31, 1, true}, {1<<32 - 2000, 1, true}},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			table := NewTable(0)
			h := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
			other := reserve(t, table, Spec{ID: testID(100), Role: RoleHost})
			for i, s := range steps {
				if got := table.TakeNotConnected(h, testID(s.peer), 60_000+s.ms); got != s.told {
					t.Errorf("step %d: told %v, want %v", i, got, s.told)
				}
			}
			if !table.TakeNotConnected(other, testID(1), 60_000) {
				t.Error("another allocation's peers count")
			}
			table.End(h)
			table.Recycle(h)
			h = reserve(t, table, Spec{ID: testID(101), Role: RoleHost})
			if last := steps[len(steps)-1]; !table.TakeNotConnected(h, testID(last.peer), 60_000+last.ms) {
				t.Error("a fresh allocation inherits what the last one was told")
			}
		})
	}
}

// TestStrangerOfSeveralWorkers: of those that ask at once, one may tell.
func TestStrangerOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	const workers, seconds = 2, 20_000
	table := NewTable(0)
	h := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	told := make([]atomic.Int32, seconds)
	var arrived atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for s := range told {
				arrived.Add(1)
				for spins := 0; arrived.Load() < int64(s+1)*workers; spins++ {
					if spins > 1000 {
						runtime.Gosched()
					}
				}
				if table.TakeNotConnected(h, testID(1), 60_000+int64(s)*NotConnectedMillis) {
					told[s].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for s := range told {
		if n := told[s].Load(); n != 1 {
			t.Fatalf("second %d: told %d times, want once", s, n)
		}
	}
}

// bucket is the rate limit that everybody knows, exact and slow: it holds up
// to burst tokens and gains one each interval. It counts in microseconds.
type bucket struct {
	interval, room int64
	level, last    int64
}

func newBucket(r Rate) *bucket {
	return &bucket{interval: r.Interval, room: r.Burst * r.Interval, level: r.Burst * r.Interval}
}

func (b *bucket) take(nowMillis int64) bool {
	now := nowMillis * 1000
	b.level = min(b.room, b.level+now-b.last)
	b.last = now
	if b.level < b.interval {
		return false
	}
	b.level -= b.interval
	return true
}

func TestRateIsATokenBucket(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		rate := Rate{Interval: 1 + r.Int64N(1<<(1+r.IntN(22))), Burst: 1 + r.Int64N(20)}
		slow, now := newBucket(rate), int64(60_000)
		var gate atomic.Uint64
		for i := range 500 {
			if r.IntN(3) == 0 {
				now += r.Int64N(2 + rate.Interval/500*r.Int64N(20))
			}
			want := slow.take(now)
			if got := rate.Take(&gate, now); got != want {
				t.Fatalf("seed %d, %+v: event %d at %d ms: %v, want %v", seed, rate, i, now, got, want)
			}
		}
	}
}

// TestRateOfLateWorkers: clocks that are behind gain nothing.
func TestRateOfLateWorkers(t *testing.T) {
	t.Parallel()
	rate := Rate{Interval: 10_000, Burst: 5}
	r := rand.New(rand.NewPCG(5, 6))
	const start, millis, behind = 60_000, 10_000, 100
	var gate atomic.Uint64
	taken := int64(0)
	for now := int64(start); now < start+millis; now++ {
		for range 3 {
			if rate.Take(&gate, now-r.Int64N(behind)) {
				taken++
			}
		}
	}
	if most := rate.Burst + (millis+behind)*1000/rate.Interval; taken > most || taken < most*9/10 {
		t.Errorf("%d events, want %d at the most and not many fewer", taken, most)
	}
}

// TestMismatchIsPerAllocation: each has a gate of its own, full when it is
// reserved, and workers that draw at once draw no more than there is.
func TestMismatchIsPerAllocation(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	rate := Rate{Interval: 1_000_000, Burst: 50}
	draw := func(h Handle) int64 {
		var drawn atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 40 {
					if table.TakeMismatch(h, rate, 60_000) {
						drawn.Add(1)
					}
				}
			})
		}
		wg.Wait()
		return drawn.Load()
	}
	a, b := reserve(t, table, Spec{ID: testID(1), Role: RoleHost}), reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	for _, h := range []Handle{a, b} {
		if n := draw(h); n != rate.Burst {
			t.Errorf("%d events, want %d", n, rate.Burst)
		}
	}
	table.End(a)
	table.Recycle(a)
	if n := draw(reserve(t, table, Spec{ID: testID(3), Role: RoleHost})); n != rate.Burst {
		t.Errorf("%d events of a fresh allocation, want %d", n, rate.Burst)
	}
}

// TestUnproven: to an endpoint of which nothing is known no more goes than its
// allowance, however it is drawn, until its owner is heard there.
func TestUnproven(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	h, other := reserve(t, table, Spec{ID: testID(1), Role: RoleHost}), reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	if !table.Activity(h).IsValidated() || !table.Activity(h).AllowSend(1<<30) {
		t.Error("an allocation without an endpoint begins unproven")
	}
	type step struct {
		size int
		want bool
	}
	for _, c := range []struct {
		name      string
		allowance uint32
		steps     []step
	}{
		{"exactly", 100, []step{{60, true}, {41, false}, {40, true}, {1, false}, {0, true}}},
		{"nothing", 0, []step{{1, false}, {0, true}}},
		{"smaller ones go on", 1000, []step{{1001, false}, {1000, true}, {1, false}}},
		{"most", 1<<32 - 1, []step{{1472, true}, {1472, true}}},
		{"endless", 1<<31 - 1, []step{{1472, true}}},
	} {
		table.Activity(h).RequireValidation(c.allowance)
		for i, s := range c.steps {
			if got := table.Activity(h).AllowSend(s.size); got != s.want {
				t.Errorf("%s, step %d: %v, want %v", c.name, i, got, s.want)
			}
		}
		if table.Activity(h).IsValidated() || !table.Activity(other).IsValidated() {
			t.Errorf("%s: proven %v, and the other one %v", c.name, table.Activity(h).IsValidated(), table.Activity(other).IsValidated())
		}
		table.Activity(h).Validate()
		if !table.Activity(h).IsValidated() || !table.Activity(h).AllowSend(1<<30) || !table.Activity(h).AllowSend(1<<30) {
			t.Errorf("%s: who was heard is still limited", c.name)
		}
	}
	table.Activity(h).RequireValidation(5)
	table.End(h)
	table.Recycle(h)
	if !table.Activity(reserve(t, table, Spec{ID: testID(3), Role: RoleJoiner})).IsValidated() {
		t.Error("the next owner of a slot inherits an allowance")
	}
}

// TestUnprovenOfSeveralWorkers: those that draw at once draw no more than there
// is, and what one of them proves stays proven.
func TestUnprovenOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	const workers, allowance, size = 4, 100_000, 7
	table := NewTable(1)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	for round := range 50 {
		table.Activity(h).RequireValidation(allowance)
		var drawn atomic.Int64
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for table.Activity(h).AllowSend(size) && !table.Activity(h).IsValidated() {
					drawn.Add(size)
				}
				if i == 0 && round%2 == 1 {
					table.Activity(h).Validate()
				}
			})
		}
		wg.Wait()
		if n := drawn.Load(); n > allowance || round%2 == 0 && n <= allowance-size {
			t.Fatalf("%d bytes were drawn of %d", n, allowance)
		}
		if table.Activity(h).IsValidated() != (round%2 == 1) {
			t.Fatal("proven ", table.Activity(h).IsValidated())
		}
	}
}

// TestLinkStamps: both directions of each link have stamps of their own, which
// lie with the joiner, and a slot's next owner has none.
func TestLinkStamps(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	a, b := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner}), reserve(t, table, Spec{ID: testID(2), Role: RoleJoiner})
	table.Link(a, host)
	table.Link(b, host)
	relayed := func(from, to Handle, tick Tick) {
		sender, _ := table.At(from)
		peer, _ := table.At(to)
		RecordRelay(sender.Role, table.Activity(sender.Handle), table.Activity(peer.Handle), tick)
	}
	type stamps struct{ fromHost, fromJoiner Tick }
	for i, s := range []struct {
		from, to     Handle
		tick         Tick
		wantA, wantB stamps
	}{
		{host, a, 10, stamps{10, 0}, stamps{}},
		{a, host, 12, stamps{10, 12}, stamps{}},
		{b, host, 11, stamps{10, 12}, stamps{0, 11}},
		{host, b, 13, stamps{10, 12}, stamps{13, 11}},
		{host, a, 9, stamps{10, 12}, stamps{13, 11}}, // a worker that is late
		{host, a, 14, stamps{14, 12}, stamps{13, 11}},
	} {
		relayed(s.from, s.to, s.tick)
		for _, c := range []struct {
			joiner Handle
			want   stamps
		}{{a, s.wantA}, {b, s.wantB}} {
			if h, j := table.Activity(c.joiner).LastRelays(); (stamps{h, j}) != c.want {
				t.Errorf("step %d: link of %x: %d, %d, want %v", i, c.joiner, h, j, c.want)
			}
		}
	}
	if h, j := table.Activity(host).LastRelays(); h != 0 || j != 0 {
		t.Errorf("the host has stamps %d, %d of its own", h, j)
	}
	table.End(a)
	table.Recycle(a)
	fresh := reserve(t, table, Spec{ID: testID(3), Role: RoleJoiner})
	if h, j := table.Activity(fresh).LastRelays(); h != 0 || j != 0 {
		t.Errorf("a fresh allocation has stamps %d, %d", h, j)
	}
}

// TestLinkStampsOfSeveralWorkers: of stamps written at once the latest stays,
// in both directions.
func TestLinkStampsOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	const workers, ticks = 4, 20_000
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	joiner := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner})
	table.Link(joiner, host)
	ofHost, ofJoiner := table.Activity(host), table.Activity(joiner)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for now := range Tick(ticks) {
				if i%2 == 0 {
					RecordRelay(RoleHost, ofHost, ofJoiner, now)
				} else {
					RecordRelay(RoleJoiner, ofJoiner, ofHost, now+1)
				}
			}
		})
	}
	wg.Wait()
	if h, j := ofJoiner.LastRelays(); h != ticks-1 || j != ticks {
		t.Errorf("stamps %d, %d, want %d, %d", h, j, ticks-1, ticks)
	}
}
