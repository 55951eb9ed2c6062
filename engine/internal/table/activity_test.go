package table

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Within a tick a worker that relays a thousand datagrams takes the line away from the others once.
func TestContract3TimestampsAreWrittenOnChangeOnly(t *testing.T) {
	t.Parallel()
	var s atomic.Uint32
	for _, c := range []struct {
		tick  Tick
		wrote bool
		want  uint32
	}{
		{5, true, 5}, {5, false, 5}, {4, false, 5}, {0, false, 5}, {6, true, 6}, {6, false, 6}, {5, false, 6},
	} {
		if wrote := advance(&s, c.tick); wrote != c.wrote || s.Load() != c.want {
			t.Errorf("tick %d: wrote %v, timestamp %d, want %v, %d", c.tick, wrote, s.Load(), c.wrote, c.want)
		}
	}
}

func TestContract3TimestampsNeverGoBack(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	h, err := table.Reserve(Spec{ID: testID(1), Role: RoleHost}, 10)
	if err != nil {
		t.Fatal(err)
	}
	receive, notice := (*Activity).RecordReceive, (*Activity).RecordNotice
	relay := func(_ *Activity, tick Tick) { table.AllowRelay(h, 0, tick) }
	message := func(_ *Activity, tick Tick) { table.RecordMessage(entryOf(table, h), tick, 0) }
	steps := []struct {
		do               func(*Activity, Tick)
		tick             Tick
		received, active Tick
	}{
		{notice, 9, 10, 10}, {relay, 9, 10, 10}, {receive, 9, 10, 10}, {message, 9, 10, 10},
		{notice, 12, 10, 12}, {receive, 11, 11, 12}, {receive, 13, 13, 13}, {notice, 12, 13, 13}, {relay, 12, 13, 13},
		{relay, 14, 13, 14}, {relay, 13, 13, 14}, {message, 15, 15, 15}, {message, 14, 15, 15},
	}
	for i, s := range steps {
		s.do(table.Activity(h), s.tick)
		if received, active := table.LastSeen(h); received != s.received || active != s.active {
			t.Errorf("step %d: timestamps %d, %d, want %d, %d", i, received, active, s.received, s.active)
		}
	}
	// A new owner of the slot does not inherit them.
	table.End(h)
	table.Recycle(h)
	h = reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	if received, active := table.LastSeen(h); received != 1 || active != 1 {
		t.Errorf("timestamps of a fresh allocation %d, %d, want 1", received, active)
	}
}

func TestContract3LatestTimestampStays(t *testing.T) {
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
				if received, active := table.LastSeen(h); received < now || active < now {
					t.Errorf("timestamps %d, %d after tick %d", received, active, now)
					return
				}
			}
		})
	}
	wg.Wait()
	if received, active := table.LastSeen(h); received != ticks || active != ticks {
		t.Errorf("timestamps %d, %d, want %d", received, active, ticks)
	}
}

func TestNotConnected(t *testing.T) {
	t.Parallel()
	const wrap = 1<<32 - 60_000 // when 32 bits of milliseconds begin again
	type step struct {
		ms   int64
		peer int
		want bool
	}
	cases := map[string][]step{
		"once a second": {{0, 1, true}, {0, 1, false}, {999, 1, false}, {1000, 1, true}, {1999, 1, false}, {2000, 1, true}},
		"by peer":       {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 1, false}, {3, 2, false}, {3, 3, false}},
		"no fourth peer": {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 4, false}, {999, 4, false}, {1000, 4, true},
			{1000, 1, false}, {1001, 1, true}},
		"late worker": {{5000, 1, true}, {4999, 1, false}, {4001, 1, false}, {5999, 1, false}, {6000, 1, true}},
		"32 bits":     {{wrap - 1, 1, true}, {wrap, 1, false}, {wrap + 998, 1, false}, {wrap + 999, 1, true}},
		"after long":  {{0, 1, true}, {1 << 31, 1, true}, {1<<32 - 2000, 1, true}},
	}
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			table := NewTable(0)
			h := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
			other := reserve(t, table, Spec{ID: testID(100), Role: RoleHost})
			for i, s := range steps {
				if got := table.TakeNotConnected(h, testID(s.peer), 60_000+s.ms); got != s.want {
					t.Errorf("step %d: %v, want %v", i, got, s.want)
				}
			}
			if !table.TakeNotConnected(other, testID(1), 60_000) {
				t.Error("another allocation's peers count")
			}
			table.End(h)
			table.Recycle(h)
			h = reserve(t, table, Spec{ID: testID(101), Role: RoleHost})
			if last := steps[len(steps)-1]; !table.TakeNotConnected(h, testID(last.peer), 60_000+last.ms) {
				t.Error("a fresh allocation inherits the record of the last one")
			}
		})
	}
}

// TestNotConnectedConcurrent: of workers that ask at once, one may send.
func TestNotConnectedConcurrent(t *testing.T) {
	t.Parallel()
	const workers, seconds = 2, 20_000
	table := NewTable(0)
	h := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	sent := make([]atomic.Int32, seconds)
	var arrived atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for s := range sent {
				arrived.Add(1)
				for spins := 0; arrived.Load() < int64(s+1)*workers; spins++ {
					if spins > 1000 {
						runtime.Gosched()
					}
				}
				if table.TakeNotConnected(h, testID(1), 60_000+int64(s)*NotConnectedMillis) {
					sent[s].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for s := range sent {
		if n := sent[s].Load(); n != 1 {
			t.Fatalf("second %d: sent %d times, want once", s, n)
		}
	}
}

// bucket is a token bucket, exact and slow: it holds up to burst tokens and gains one each interval. It counts in microseconds.
type bucket struct {
	interval, room int64
	level, last    int64
}

func newBucket(r Rate) *bucket {
	return &bucket{interval: r.IntervalMicros, room: r.Burst * r.IntervalMicros, level: r.Burst * r.IntervalMicros}
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
		rate := Rate{IntervalMicros: 1 + r.Int64N(1<<(1+r.IntN(22))), Burst: 1 + r.Int64N(20)}
		slow, now := newBucket(rate), int64(60_000)
		var gate atomic.Uint64
		for i := range 500 {
			if r.IntN(3) == 0 {
				now += r.Int64N(2 + rate.IntervalMicros/500*r.Int64N(20))
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
	rate := Rate{IntervalMicros: 10_000, Burst: 5}
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
	if most := rate.Burst + (millis+behind)*1000/rate.IntervalMicros; taken > most || taken < most*9/10 {
		t.Errorf("%d events, want %d at the most and not many fewer", taken, most)
	}
}

// TestMismatchIsPerAllocation: each has a gate of its own, full when it is reserved.
func TestMismatchIsPerAllocation(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	rate := Rate{IntervalMicros: 1_000_000, Burst: 50}
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

func TestValidation(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	h, other := reserve(t, table, Spec{ID: testID(1), Role: RoleHost}), reserve(t, table, Spec{ID: testID(2), Role: RoleHost})
	if !table.IsValidated(h) || !table.AllowRelay(h, 1<<30, 1) {
		t.Error("an allocation without an endpoint begins unvalidated")
	}
	type step struct {
		size int
		want bool
	}
	for _, c := range []struct {
		name  string
		limit uint32
		steps []step
	}{
		{"exactly", 100, []step{{60, true}, {41, false}, {40, true}, {1, false}, {0, true}}},
		{"nothing", 0, []step{{1, false}, {0, true}}},
		{"smaller ones go on", 1000, []step{{1001, false}, {1000, true}, {1, false}}},
		{"most", 1<<32 - 1, []step{{1472, true}, {1472, true}}},
		{"endless", 1<<31 - 1, []step{{1472, true}}},
	} {
		table.BeginPath(h, UnvalidatedPath(c.limit))
		for i, s := range c.steps {
			if got := table.AllowRelay(h, s.size, 1); got != s.want {
				t.Errorf("%s, step %d: %v, want %v", c.name, i, got, s.want)
			}
		}
		if table.IsValidated(h) || !table.IsValidated(other) {
			t.Errorf("%s: validated %v, and the other one %v", c.name, table.IsValidated(h), table.IsValidated(other))
		}
		table.RecordMessage(entryOf(table, h), 1, 0)
		if !table.IsValidated(h) || !table.AllowRelay(h, 1<<30, 1) || !table.AllowRelay(h, 1<<30, 1) {
			t.Errorf("%s: a validated path is still limited", c.name)
		}
	}
	table.BeginPath(h, UnvalidatedPath(5))
	table.End(h)
	table.Recycle(h)
	if !table.IsValidated(reserve(t, table, Spec{ID: testID(3), Role: RoleJoiner})) {
		t.Error("the next owner of a slot inherits a limit")
	}
}

// TestLimitedPath: messages increase the allowance of a limited path and never validate it.
func TestLimitedPath(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner})
	table.BeginPath(h, LimitedPath(100))
	if table.AllowRelay(h, 101, 1) || !table.AllowRelay(h, 100, 1) || table.AllowRelay(h, 1, 1) {
		t.Error("not the 100 bytes of the beginning")
	}
	table.RecordMessage(entryOf(table, h), 1, 30)
	if table.IsValidated(h) || table.AllowRelay(h, 31, 1) || !table.AllowRelay(h, 30, 1) {
		t.Error("not the 30 bytes that one message brought")
	}
	for range 10 {
		table.RecordMessage(entryOf(table, h), 1, 1<<30)
	}
	if table.IsValidated(h) || table.AllowRelay(h, maxAllowance+1, 1) || !table.AllowRelay(h, maxAllowance, 1) || table.AllowRelay(h, 1, 1) {
		t.Error("the allowance is not bounded")
	}
	table.BeginPath(h, ValidatedPath)
	if !table.IsValidated(h) || !table.AllowRelay(h, 1<<30, 1) {
		t.Error("a validated path is limited")
	}
}

// TestExcess: bytes beyond the allowance of a limited path draw on a quota of its own, with a
// burst of a second; replies draw on both and are never refused.
func TestExcess(t *testing.T) {
	t.Parallel()
	table, q := NewTable(1), NewQuota(0, 1000)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner})
	const now = 10_000 // ms
	if table.TakeExcess(h, q, 1, now) {
		t.Error("a validated path has an excess")
	}
	table.ChargeReply(h, q, 1<<20, now) // It has no allowance to charge.
	table.BeginPath(h, LimitedPath(100))
	table.ChargeReply(h, q, 60, now)
	if table.AllowRelay(h, 41, 1) || !table.AllowRelay(h, 40, 1) {
		t.Error("a reply does not take from the allowance")
	}
	if !isIdle(table.excessGate(h).Load(), quotaClock(now), quotaBurst, quotaClockSkew) {
		t.Error("an allowance that was enough took from the quota")
	}
	table.ChargeReply(h, q, 400, now)
	if table.TakeExcess(h, q, 610, now) || !table.TakeExcess(h, q, 590, now) || table.TakeExcess(h, q, 100, now) {
		t.Error("not the 600 bytes that a reply of 400 leaves of 1,000")
	}
	if isIdle(table.excessGate(h).Load(), quotaClock(now), quotaBurst, quotaClockSkew) || !table.TakeExcess(h, q, 400, now+500) {
		t.Error("the quota is not filled again at its rate")
	}
	table.RecordExcess(h, 7)
	if _, active := table.LastSeen(h); active != 7 {
		t.Errorf("last active at %d, want 7", active)
	}
}

func TestLinked(t *testing.T) {
	t.Parallel()
	table := NewTable(8)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost, MaxConnections: 7})
	linked := func() []Handle { return slices.Collect(table.LinkedJoiners(host)) }
	if got := linked(); len(got) != 0 {
		t.Errorf("%v before the first link", got)
	}
	var joiners []Handle
	for i := 1; i < 6; i++ {
		j := reserve(t, table, Spec{ID: testID(i), Role: RoleJoiner, Match: testID(0)})
		table.Link(j, host)
		joiners = append(joiners, j)
	}
	if got := linked(); !slices.Equal(got, joiners) {
		t.Errorf("%v, want %v", got, joiners)
	}
	for _, i := range []int{2, 0, 2} { // of those that are left: from the middle, the first, the last
		if !table.Unlink(joiners[i]) {
			t.Fatal("no link")
		}
		joiners = slices.Delete(joiners, i, i+1)
		if got := linked(); !slices.Equal(got, joiners) {
			t.Errorf("%v, want %v", got, joiners)
		}
	}
	table.End(joiners[1])
	if got := linked(); !slices.Equal(got, joiners[:1]) {
		t.Errorf("%v after the end of a joiner, want %v", got, joiners[:1])
	}
	for range table.LinkedJoiners(host) {
		break // An iteration may end early.
	}
}

// TestLargeMessages: drops and forwarded messages are counted apart.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	table, h := quotaTable(t)
	l := table.LargeMessages(h)
	l.AddDrop()
	l.AddForwarded()
	l.AddForwarded()
	if l.Drops() != 1 || l.Forwarded() != 2 || !l.TakeReport() || l.TakeReport() {
		t.Errorf("%d drops, %d forwarded, or two reports", l.Drops(), l.Forwarded())
	}
	if l.ReturnReport(); !l.TakeReport() {
		t.Error("a report that was returned is not there")
	}
}

// TestValidationConcurrent: workers that send at once send no more than the limit allows.
func TestValidationConcurrent(t *testing.T) {
	t.Parallel()
	const workers, limit, size = 4, 100_000, 7
	table := NewTable(1)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	for round := range 50 {
		table.BeginPath(h, UnvalidatedPath(limit))
		var drawn atomic.Int64
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for table.AllowRelay(h, size, 1) && !table.IsValidated(h) {
					drawn.Add(size)
				}
				if i == 0 && round%2 == 1 {
					table.RecordMessage(entryOf(table, h), 1, 0)
				}
			})
		}
		wg.Wait()
		if n := drawn.Load(); n > limit || round%2 == 0 && n <= limit-size {
			t.Fatalf("%d bytes were drawn of %d", n, limit)
		}
		if table.IsValidated(h) != (round%2 == 1) {
			t.Fatal("validated ", table.IsValidated(h))
		}
	}
}

// TestValidationWhilePathBegins: the path is validated at the latest by the next message.
func TestValidationWhilePathBegins(t *testing.T) {
	t.Parallel()
	const rounds, tick = 20_000, 7
	table := NewTable(1)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	var round atomic.Int64
	var wg sync.WaitGroup
	message := func() {
		if !table.Activity(h).HasHeard(tick) {
			table.RecordMessage(entryOf(table, h), tick, 0)
		}
	}
	wg.Go(func() {
		for round.Load() < rounds {
			message()
		}
	})
	for ; round.Load() < rounds; round.Add(1) {
		table.BeginPath(h, UnvalidatedPath(100))
		for range 8 {
			message()
		}
		// The other goroutine may be about to validate it.
		if !testkit.Poll(testkit.WaitLimit, func() bool { return table.IsValidated(h) && table.Activity(h).LastHeard() == tick }) {
			round.Store(rounds)
			t.Error("a path stays unvalidated")
		}
	}
	wg.Wait()
}

func entryOf(table *Table, h Handle) *Entry {
	e, _ := table.At(h)
	return &e
}

// TestMessageOfFormerEndpoint: a message that a worker has from the endpoint of before
// does not validate the path to the new one, nor increase its allowance.
func TestMessageOfFormerEndpoint(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost})
	table.Bind(h, testEndpoint(1))
	table.BeginPath(h, UnvalidatedPath(100))
	former := entryOf(table, h)
	table.Bind(h, testEndpoint(2))
	for _, p := range []Path{UnvalidatedPath(100), LimitedPath(100)} {
		table.BeginPath(h, p)
		table.RecordMessage(former, 5, 1000)
		if table.IsValidated(h) || table.AllowRelay(h, 101, 5) || !table.AllowRelay(h, 100, 5) {
			t.Errorf("path %x: changed by a message of another endpoint", p)
		}
		if table.Activity(h).HasHeard(5) {
			t.Errorf("path %x: the next message of the tick is not looked at", p)
		}
	}
}

// TestLastRelays: each direction of a link has a timestamp, and a slot's next owner has none.
func TestLastRelays(t *testing.T) {
	t.Parallel()
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	a, b := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner}), reserve(t, table, Spec{ID: testID(2), Role: RoleJoiner})
	table.Link(a, host)
	table.Link(b, host)
	relayed := func(from, to Handle, tick Tick) {
		if !table.AllowRelay(to, 1, tick) {
			t.Fatal("a validated path is limited")
		}
		table.Activity(from).RecordRelay(tick)
	}
	type relays struct{ fromHost, fromJoiner Tick }
	for i, s := range []struct {
		from, to     Handle
		tick         Tick
		wantA, wantB relays
	}{
		{host, a, 10, relays{10, 0}, relays{}},
		{a, host, 12, relays{10, 12}, relays{}},
		{b, host, 11, relays{10, 12}, relays{0, 11}},
		{host, b, 13, relays{10, 12}, relays{13, 11}},
		{host, a, 9, relays{10, 12}, relays{13, 11}}, // a worker that is late
		{host, a, 14, relays{14, 12}, relays{13, 11}},
	} {
		relayed(s.from, s.to, s.tick)
		for _, c := range []struct {
			joiner Handle
			want   relays
		}{{a, s.wantA}, {b, s.wantB}} {
			if h, j := table.LastRelays(c.joiner); (relays{h, j}) != c.want {
				t.Errorf("step %d: link of %x: %d, %d, want %v", i, c.joiner, h, j, c.want)
			}
		}
	}
	tick := Tick(14)
	for _, p := range []Path{ValidatedPath, UnvalidatedPath(100), LimitedPath(100), ValidatedPath} {
		table.BeginPath(a, p)
		if h, j := table.LastRelays(a); h != tick || j != 12 {
			t.Errorf("path %x: link of a: %d, %d, want %d, 12", p, h, j, tick)
		}
		tick++
		relayed(host, a, tick)
		relayed(host, a, tick-5)
		if h, _ := table.LastRelays(a); h != tick {
			t.Errorf("path %x: the host relayed at %d, want %d", p, h, tick)
		}
	}
	table.End(a)
	table.Recycle(a)
	fresh := reserve(t, table, Spec{ID: testID(3), Role: RoleJoiner})
	if h, j := table.LastRelays(fresh); h != 0 || j != 0 {
		t.Errorf("a fresh allocation has timestamps %d, %d", h, j)
	}
}

func TestLastRelaysConcurrent(t *testing.T) {
	t.Parallel()
	const workers, ticks = 4, 20_000
	table := NewTable(0)
	host := reserve(t, table, Spec{ID: testID(0), Role: RoleHost})
	joiner := reserve(t, table, Spec{ID: testID(1), Role: RoleJoiner})
	table.Link(joiner, host)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for now := range Tick(ticks) {
				if i%2 == 0 {
					table.AllowRelay(joiner, 1, now)
				} else {
					table.Activity(joiner).RecordRelay(now + 1)
				}
			}
		})
	}
	wg.Wait()
	if h, j := table.LastRelays(joiner); h != ticks-1 || j != ticks {
		t.Errorf("timestamps %d, %d, want %d, %d", h, j, ticks-1, ticks)
	}
}

func TestCounterIndex(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	for _, index := range []uint32{7, 0, 1<<32 - 1} {
		h := reserve(t, table, Spec{ID: testID(1), Role: RoleHost, CounterIndex: index})
		if got := table.Activity(h).CounterIndex(); got != index || table.Slots() != 1 {
			t.Errorf("counter index %d, want %d; %d slots", got, index, table.Slots())
		}
		table.End(h)
		table.Recycle(h)
	}
}
