package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// sent is a datagram as a lying relay gets it. At is when it was due, from the start of the
// measured interval.
type sent struct {
	flow int
	seq  uint32
	at   time.Duration
}

// copied is one copy that a lying relay delivers: late by a time, changed, and to another
// endpoint of the match.
type copied struct {
	after  time.Duration
	change func([]byte) []byte
	astray bool
}

// lyingRelay does known things to datagrams, in simulated time. The zero value delivers all at once.
type lyingRelay struct {
	relay func(sent) []copied      // nil: each once, after a millisecond
	lag   func(sent) time.Duration // of the generator; nil: none
	few   bool                     // a run of fewer than 100 datagrams
	own   uint64                   // drops on the generator's own sockets
	sys   system
}

const relayTime = time.Millisecond

func deliver(after time.Duration) []copied { return []copied{{after: after}} }

// simulate makes a run of cfg, whose clock is that of the schedule: nothing waits, and
// neither the machine nor its load has an effect.
func (l lyingRelay) simulate(t *testing.T, cfg Config) Result {
	t.Helper()
	cfg, err := cfg.withDefaults(benchrig.Direct{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := cfg.plan()
	if err != nil {
		t.Fatal(err)
	}
	rig, err := benchrig.Direct{Header: benchrig.DefaultHeader}.Open(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rig.Close() })
	g := newGenerator(&cfg, rig, 77)
	type event struct {
		at  int64
		run func()
	}
	var events []event
	for ; g.schedule.next().due < g.times.end; g.schedule.advance() {
		next := g.schedule.next()
		due, i := next.due, next.flow
		s := sent{i, g.flows[i].seq, time.Duration(due - g.times.measure)}
		left := due
		if l.lag != nil {
			left += int64(l.lag(s))
		}
		o := &g.sender.out[g.flows[i].socket]
		pkt := slices.Clone(g.sender.datagram(o.bufs[0], i, next.size, due))
		events = append(events, event{left, func() {
			g.recorder.expectDelivery(g.flows[i].to, due)
			o.dues, o.portion = append(o.dues, due), g.recorder.portionOf(due)
			g.recorder.recordSent(o, benchrig.SendResult{}, left)
		}})
		copies := deliver(relayTime)
		if l.relay != nil {
			copies = l.relay(s)
		}
		for _, c := range copies {
			f, got := &g.flows[i], slices.Clone(pkt)
			if c.change != nil {
				got = c.change(got)
			}
			to := &rig.Endpoints[f.to]
			if c.astray {
				to = &rig.Endpoints[f.from]
			}
			from := endpoint.UDP(rig.Endpoints[f.from].Addr, to.Local, 0)
			at := left + int64(c.after)
			events = append(events, event{at, func() { g.accountDatagram(f.arrives, rig.Sockets[f.arrives], from, got, false, at) }})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		g.recorder.keepTime(e.at)
		e.run()
	}
	g.recorder.keepTime(g.times.end)
	r := newResult(&cfg, benchrig.Direct{}, &plan)
	g.collect(&r, new(observer))
	r.Generator.Drops, r.System = l.own, l.sys
	r.findCauses(&cfg)
	return r
}

func within2[T int | uint64 | float64 | time.Duration](t *testing.T, name string, got, want T) {
	t.Helper()
	if math.Abs(float64(got)-float64(want)) > 0.02*math.Abs(float64(want)) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// lyingConfig offers 100 datagrams per second and flow, 10,000 in all.
func lyingConfig() Config {
	return Config{Load: Load{Matches: 5, Rate: 1000, Warmup: time.Second, Duration: 10 * time.Second}}
}

// TestLostIsInfinite: what does not arrive counts in each quantile as infinitely late.
func TestLostIsInfinite(t *testing.T) {
	for _, c := range []struct {
		name                string
		lost                uint32 // of 1,000
		p50, p90, p99, p999 time.Duration
		holds, fails        string
	}{
		{"nothing", 0, relayTime, relayTime, relayTime, relayTime, "p999<2ms,max<2ms,mean<2ms,loss<=0", ""},
		{"half a percent", 5, relayTime, relayTime, relayTime, figures.Lost, "p99<2ms,loss<0.6%,loss>0.4%", "p999<1h,max<1h,mean<1h"},
		{"a twentieth", 50, relayTime, relayTime, figures.Lost, figures.Lost, "p90<2ms", "p99<1h,p999<1h,max<1h"},
		{"59 %", 590, figures.Lost, figures.Lost, figures.Lost, figures.Lost, "loss<60%", "p50<1h,p90<1h,p99<500ms,mean<500ms,max<500ms"},
		{"all", 1000, figures.Lost, figures.Lost, figures.Lost, figures.Lost, "loss>=100%", "p50<1h,p99<500ms,mean<500ms,max<500ms,delivered>0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := lyingRelay{relay: func(s sent) []copied {
				if s.seq%200*5+uint32(s.flow)%5 < c.lost {
					return nil
				}
				return deliver(relayTime)
			}}.simulate(t, lyingConfig())
			within2(t, "offered", r.Offered, 10_000)
			within2(t, "lost", r.Lost, uint64(c.lost)*10)
			within2(t, "lost in the latency", r.Latency.Lost, uint64(c.lost)*10)
			within2(t, "loss", r.LossRatio, float64(c.lost)/1000)
			within2(t, "delivered", r.DeliveredRate, float64(1000-c.lost))
			within2(t, "p50", r.Latency.P50, c.p50)
			within2(t, "p90", r.Latency.P90, c.p90)
			within2(t, "p99", r.Latency.P99, c.p99)
			within2(t, "p99.9", r.Latency.P999, c.p999)
			for _, q := range r.Latency.Series {
				if q.Value == figures.Lost || q.Percent > 100*(1-r.LossRatio)+1e-9 {
					t.Errorf("%v %% within %v, with %v lost", q.Percent, q.Value, r.LossRatio)
				}
			}
			for _, condition := range parsed(t, c.holds) {
				if v, ok := condition.Check(&r); !ok {
					t.Errorf("%s does not hold: %v", condition, v)
				}
			}
			for _, condition := range parsed(t, c.fails) {
				if v, ok := condition.Check(&r); ok {
					t.Errorf("%s holds: %v", condition, v)
				}
			}
		})
	}
}

func parsed(t *testing.T, conditions string) []Threshold {
	t.Helper()
	all, err := ParseThresholds(conditions)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestQuantilesNeedSamples: a quantile beyond the number of datagrams is not measured.
func TestQuantilesNeedSamples(t *testing.T) {
	h := newHistogram(3)
	for _, n := range []int{1, 9, 10, 99, 100, 999, 1000} {
		for h.TotalCount() < int64(n) {
			record(h, (h.TotalCount()+1)*1e6)
		}
		l := newLatency(h, 0, false)
		if (l.P90 > 0) != (n >= 10) || (l.P99 > 0) != (n >= 100) || (l.P999 > 0) != (n >= 1000) {
			t.Fatalf("%d samples: %+v", n, l)
		}
	}
	r := Result{Offered: 99, Sent: 99, Delivered: 99, Latency: Latency{Samples: 99, P50: 1}}
	if len(Missed(parsed(t, "p99<1h"), &r)) == 0 {
		t.Error("the p99 of 99 datagrams holds")
	}
}

// TestCausesByEvidence: what the server lost is in the verdict whatever the generator did, and the
// other way around.
func TestCausesByEvidence(t *testing.T) {
	third := func(s sent) []copied {
		if s.seq%3 == 0 {
			return nil
		}
		return deliver(relayTime)
	}
	late := func(d time.Duration) func(sent) time.Duration {
		return func(s sent) time.Duration {
			if s.seq%50 == 0 || s.seq == 105 && s.flow == 0 { // 2 %
				return d
			}
			return 0
		}
	}
	full := system{OtherRcvbufErrors: 19_562}
	stolen := system{Steal: 2 * time.Second, Idle: 98 * time.Second}
	for name, c := range map[string]struct {
		relay  lyingRelay
		valid  bool
		server bool // the search blames it
		want   []string
	}{
		"clean":           {lyingRelay{}, true, true, nil},
		"a third lost":    {lyingRelay{relay: third, sys: full}, true, true, []string{"lost between", "dropped 19562"}},
		"late":            {lyingRelay{lag: late(1200 * time.Microsecond)}, false, false, []string{"fell behind"}},
		"late as allowed": {lyingRelay{lag: late(900 * time.Microsecond)}, true, true, nil},
		"late by 200 ms": {lyingRelay{lag: late(200 * time.Millisecond)}, false, false,
			[]string{"1% of the datagrams left more than 200 ms late"}},
		"late and lost": {lyingRelay{relay: third, lag: late(2 * time.Millisecond), sys: full}, false, true,
			[]string{"fell behind", "lost between", "dropped 19562"}},
		"own drops": {lyingRelay{relay: third, own: 5000}, false, false, []string{"generator's own sockets"}},
		"own drops, and lost": {lyingRelay{relay: third, own: 1000}, false, true,
			[]string{"dropped 1000 datagrams on the generator's own", "lost between"}},
		"late and few": {lyingRelay{few: true, lag: late(1200 * time.Microsecond)}, false, false, []string{"fell behind"}},
		"steal":        {lyingRelay{sys: stolen}, false, true, []string{"hypervisor took 2.0%"}},
		"steal, late and lost": {lyingRelay{relay: third, lag: late(2 * time.Millisecond), sys: stolen}, false, true,
			[]string{"fell behind", "hypervisor", "lost between"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := lyingConfig()
			if c.relay.few { // so that there is no p99
				cfg.Duration = 90 * time.Millisecond
			}
			r := c.relay.simulate(t, cfg)
			if r.Valid != c.valid || r.blame().server != c.server || len(r.Causes) == 0 != (c.want == nil) {
				t.Errorf("valid %v, server %v: %+v", r.Valid, r.blame().server, r.Causes)
			}
			for _, want := range c.want {
				if !strings.Contains(r.Reasons(limitGenerator)+r.Reasons(limitMachine)+r.Reasons(limitServer), want) {
					t.Errorf("no %q in %+v", want, r.Causes)
				}
			}
		})
	}
	r := Result{Keepalives: keepalives{Sent: 3}}
	if r.findCauses(&Config{}); !r.Valid || r.Reasons(limitServer) != "3 of 3 keep-alives were not answered." {
		t.Errorf("a relay that answers no keep-alive: %+v", r.Causes)
	}
}

// TestLagByDatagram: each datagram has its own lag, which its latency contains.
func TestLagByDatagram(t *testing.T) {
	r := lyingRelay{lag: func(s sent) time.Duration {
		if s.seq%50 == 0 { // 2 %
			return 40 * time.Millisecond
		}
		return 100 * time.Microsecond
	}}.simulate(t, lyingConfig())
	within2(t, "median of the lag", r.Generator.Lag.P50, 100*time.Microsecond)
	within2(t, "p99 of the lag", r.Generator.Lag.P99, 40*time.Millisecond)
	within2(t, "p99 of the latency", r.Latency.P99, 41*time.Millisecond)
}

// TestLagOfABatch: the oldest datagram of a batch does not make the others late.
func TestLagOfABatch(t *testing.T) {
	g := directGenerator(t, Config{Load: Load{Matches: 2, Rate: 1000, Warmup: -1}}, 1)
	o := &g.sender.out[0]
	const late = 100
	for n := range late {
		g.sender.queue(0, g.cfg.Payload, g.times.measure+int64(n)*1e6)
	}
	g.recorder.recordSent(o, benchrig.SendResult{}, g.times.measure+late*1e6)
	lag := newLatency(g.recorder.interval.lag, 0, false)
	within2(t, "samples", lag.Samples, late)
	within2(t, "least", lag.Min, time.Millisecond)
	within2(t, "median", lag.P50, 51*time.Millisecond)
	within2(t, "most", lag.Max, late*time.Millisecond)
}

// TestGaps: the longest time without a delivery is that in which the relay stood still.
func TestGaps(t *testing.T) {
	between := func(from, to time.Duration, only func(sent) bool, what []copied) func(sent) []copied {
		return func(s sent) []copied {
			if s.at >= from && s.at < to && only(s) {
				return what
			}
			return deliver(relayTime)
		}
	}
	all := func(sent) bool { return true }
	held := func(s sent) []copied { // by a relay that is stopped and continues
		if s.at < 3*time.Second {
			return deliver(relayTime)
		}
		return deliver(max(relayTime, 5*time.Second-s.at))
	}
	slow := lyingConfig()
	slow.Rate = 5
	star := lyingConfig()
	star.Shape, star.Matches, star.Players = shapeStar, 2, 4
	up := lyingConfig()
	up.Direction = directionUp
	traffic := lyingConfig()
	traffic.Traffic, traffic.traffic, traffic.Matches, traffic.Rate = "uneven", unevenTraffic(), 1, 0
	const restart = 4100 * time.Millisecond
	for name, c := range map[string]struct {
		cfg   Config
		relay func(sent) []copied
		want  Gaps
	}{
		"none":          {lyingConfig(), nil, Gaps{Endpoints: 10}},
		"a restart":     {lyingConfig(), between(3*time.Second, 3*time.Second+restart, all, nil), Gaps{restart, restart, 10, 10, 0}},
		"two of a star": {star, between(3*time.Second, 3*time.Second+restart, all, nil), Gaps{restart, restart, 10, 10, 0}},
		"one direction": {up, between(3*time.Second, 3*time.Second+restart, all, nil), Gaps{restart, restart, 5, 5, 0}},
		"one flow": {lyingConfig(), between(time.Second, 4*time.Second, func(s sent) bool { return s.flow == 3 }, nil),
			Gaps{0, 3 * time.Second, 10, 1, 0}},
		"under a second": {lyingConfig(), between(time.Second, 1900*time.Millisecond, all, nil),
			Gaps{900 * time.Millisecond, 900 * time.Millisecond, 10, 0, 0}},
		"held back":      {lyingConfig(), held, Gaps{2 * time.Second, 2 * time.Second, 10, 10, 0}},
		"until the end":  {lyingConfig(), between(7*time.Second, time.Hour, all, nil), Gaps{3 * time.Second, 3 * time.Second, 10, 10, 0}},
		"from the start": {lyingConfig(), between(-time.Hour, 3*time.Second, all, nil), Gaps{3 * time.Second, 3 * time.Second, 10, 10, 0}},
		"always":         {lyingConfig(), between(-time.Hour, time.Hour, all, nil), Gaps{10 * time.Second, 10 * time.Second, 10, 10, 10}},
		"in the warm-up": {lyingConfig(), between(-time.Hour, 0, all, nil), Gaps{Endpoints: 10}},
		"rarely due":     {slow, nil, Gaps{Endpoints: 10}},
		"traffic":        {traffic, nil, Gaps{Endpoints: 3}}, // Nothing is due to the first player.
		"traffic held":   {traffic, held, Gaps{2 * time.Second, 2 * time.Second, 3, 3, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := lyingRelay{relay: c.relay}.simulate(t, c.cfg)
			if r.Gaps == nil {
				t.Fatal("not measured")
			}
			near := func(what string, got, want time.Duration) {
				if (got - want).Abs() > want/50+2*relayTime { // one datagram's time in the relay at either end
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			near("longest", r.Gaps.Longest, c.want.Longest)
			near("of an endpoint", r.Gaps.Endpoint, c.want.Endpoint)
			if r.Gaps.Endpoints != c.want.Endpoints || r.Gaps.Over != c.want.Over || r.Gaps.Absent != c.want.Absent {
				t.Errorf("%d of %d endpoints, %d absent, want %d of %d, %d absent", r.Gaps.Over, r.Gaps.Endpoints, r.Gaps.Absent,
					c.want.Over, c.want.Endpoints, c.want.Absent)
			}
			for condition, want := range map[string]bool{"gap<1s": c.want.Endpoint < time.Second, "gap<1m": true} {
				if _, ok := parsed(t, condition)[0].Check(&r); ok != want {
					t.Errorf("%s: %v", condition, ok)
				}
			}
		})
	}
	if _, ok := parsed(t, "gap<1s")[0].Check(&Result{Offered: 1}); ok {
		t.Error("a gap that was not measured holds")
	}
}

// TestAbsentDecides: an endpoint that is gone after the silence fails also if the generator was late, and not if the
// generator may not have sent to it or received.
func TestAbsentDecides(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Result)
		fails  string
	}{
		"late":  {func(r *Result) { r.Generator.Lag.Max = 100 * time.Millisecond }, "[absent<=0]"},
		"valid": {func(r *Result) { r.Valid = true }, "[absent<=0]"}, "all there": {func(r *Result) { r.Gaps.Absent = 0 }, "[]"},
		"pairs": {func(r *Result) { r.Load.Shape = shapePairs }, "[]"}, "stopped": {func(r *Result) { r.Interrupted = true }, "[]"},
		"too late": {func(r *Result) { r.Generator.Lag.Max = 300 * time.Millisecond }, "[]"},
		"dropped":  {func(r *Result) { r.Generator.Drops = 1 }, "[]"}, "unsent": {func(r *Result) { r.Unsent = 1 }, "[]"},
	} {
		r := Result{Load: Load{Shape: shapeIdle, Drain: defaultDrain}, Gaps: &Gaps{Endpoints: 40, Absent: 1}}
		c.change(&r)
		if got := fmt.Sprint(Missed(nil, &r)); got != c.fails {
			t.Errorf("%s: fails %s, want %s", name, got, c.fails)
		}
	}
}

// timedSessions are sessions that take known times, of which those that wait for one place of a
// slow server take longer the more there are.
type timedSessions struct {
	benchrig.Direct
	setup time.Duration
	fails bool
	slow  chan struct{} // nil: none
}

func (d timedSessions) Session(ctx context.Context, play time.Duration, done func(string, time.Duration)) error {
	if d.fails {
		return errors.New("refused")
	}
	if d.slow != nil {
		d.slow <- struct{}{}
		time.Sleep(200 * time.Millisecond)
		<-d.slow
	}
	time.Sleep(d.setup + play)
	done("play", play)
	return ctx.Err()
}

// TestChurnRate: neither the length of a session nor the play of the last ones is in the rate.
func TestChurnRate(t *testing.T) {
	for name, c := range map[string]struct {
		d                 timedSessions
		play, stop        time.Duration
		started, finished uint64
		rate              float64
	}{
		"short":         {timedSessions{}, time.Millisecond, time.Hour, 100, 100, 20},
		"long":          {timedSessions{setup: 30 * time.Millisecond}, 3 * time.Second, time.Hour, 100, 100, 20},
		"longer":        {timedSessions{setup: time.Second}, time.Minute, time.Hour, 100, 100, 20},
		"slow":          {timedSessions{slow: make(chan struct{}, 1)}, time.Second, time.Hour, 100, 100, 5},
		"refused":       {timedSessions{fails: true}, time.Second, time.Hour, 100, 0, 0},
		"stopped":       {timedSessions{}, 500 * time.Millisecond, 2501 * time.Millisecond, 51, 41, 41 / 2.501},
		"stopped early": {timedSessions{}, time.Second, 510 * time.Millisecond, 11, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.d.slow != nil {
					c.d.slow = make(chan struct{}, 1) // of the bubble
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.stop)
				defer cancel()
				b := testbed{dialect: c.d}
				r := b.churn(ctx, &Config{Load: Load{Shape: shapeChurn, SessionRate: 20, SessionLength: c.play}}, 5*time.Second)
				if r.Started != c.started || r.Finished != c.finished {
					t.Errorf("%d started, %d finished", r.Started, r.Finished)
				}
				within2(t, "rate", r.Rate, c.rate)
				if r.Lag.Samples != r.Started || r.Lag.Max > time.Microsecond {
					t.Errorf("%d sessions began with the lag %+v", r.Started, r.Lag)
				}
			})
		})
	}
}

// TestLies: each kind of damage is counted as what it is, and nothing else is.
func TestLies(t *testing.T) {
	const header = benchrig.DefaultHeader
	one := func(s sent, of uint32) bool { return (s.seq*10+uint32(s.flow))%of == 0 }
	lie := func(of uint32, copies func(sent) []copied) func(sent) []copied {
		return func(s sent) []copied {
			if one(s, of) {
				return copies(s)
			}
			return deliver(relayTime)
		}
	}
	changed := func(change func(s sent, b []byte) []byte) func(sent) []copied {
		return func(s sent) []copied {
			return []copied{{after: relayTime, change: func(b []byte) []byte { return change(s, b) }}}
		}
	}
	for name, c := range map[string]struct {
		relay  func(sent) []copied
		want   Result // of 10,000
		total  Latency
		reason string // of the server; it does not hold without any condition if fails is set
		fails  string
	}{
		"duplicates": {lie(25, func(sent) []copied { return append(deliver(relayTime), deliver(3*relayTime)...) }),
			Result{Duplicated: 400, Delivered: 10_000}, Latency{}, "400 datagrams arrived more than once", ""},
		"thrice": {lie(50, func(sent) []copied {
			return append(deliver(relayTime), append(deliver(relayTime), deliver(relayTime)...)...)
		}), Result{Duplicated: 400, Delivered: 10_000}, Latency{}, "arrived more than once", ""},
		"late duplicates": {lie(25, func(sent) []copied { return append(deliver(relayTime), deliver(400*time.Millisecond)...) }),
			Result{Duplicated: 400, Delivered: 10_000}, Latency{}, "arrived more than once", ""},
		"a duplicate after 8 s": {func(s sent) []copied {
			if s.flow == 0 && s.seq == 103 {
				return append(deliver(relayTime), deliver(8*time.Second)...)
			}
			return deliver(relayTime)
		}, Result{Duplicated: 1, Delivered: 10_000}, Latency{}, "1 datagrams arrived more than once", ""},
		"overtaken": {lie(33, func(sent) []copied { return deliver(15 * time.Millisecond) }),
			Result{Reordered: 303, Delivered: 10_000}, Latency{}, "303 datagrams arrived after a later one", ""},
		"astray": {lie(100, func(sent) []copied { return []copied{{after: relayTime, astray: true}} }),
			Result{Misdelivered: 100, Delivered: 9_900}, Latency{Lost: 100}, "100 datagrams arrived at another endpoint", "misdelivered<=0"},
		"to another as well": {lie(100, func(sent) []copied {
			return append(deliver(relayTime), copied{after: relayTime, astray: true})
		}), Result{Misdelivered: 100, Delivered: 10_000}, Latency{}, "100 datagrams arrived at another endpoint", "misdelivered<=0"},
		"due time and check rewritten": {lie(33, changed(func(_ sent, b []byte) []byte {
			stamp := b[header:]
			due := int64(binary.BigEndian.Uint64(stamp[16:])) + int64(50*time.Millisecond)
			binary.BigEndian.PutUint64(stamp[16:], uint64(due))
			binary.BigEndian.PutUint32(stamp, 0xFE221B3C^crc32.Checksum(stamp[4:], crc32.MakeTable(crc32.Castagnoli)))
			return b
		})), Result{Corrupt: 303, Delivered: 9_697}, Latency{Lost: 303}, "303 datagrams arrived changed", "corrupt<=0"},
		"another byte": {lie(33, changed(func(s sent, b []byte) []byte {
			b[header+int(s.seq)*7%(len(b)-header)] ^= byte(1 + s.seq%255)
			return b
		})), Result{Corrupt: 303, Delivered: 9_697}, Latency{Lost: 303}, "arrived changed", "corrupt<=0"},
		"cut off": {lie(33, changed(func(s sent, b []byte) []byte { return b[:int(s.seq)*7%len(b)] })),
			Result{Corrupt: 303, Delivered: 9_697}, Latency{Lost: 303}, "arrived changed", "corrupt<=0"},
		"longer": {lie(33, changed(func(_ sent, b []byte) []byte { return append(b, 0) })), Result{Corrupt: 303, Delivered: 9_697},
			Latency{Lost: 303}, "arrived changed", "corrupt<=0"},
		"zeros": {lie(33, changed(func(_ sent, b []byte) []byte { return make([]byte, len(b)) })),
			Result{Corrupt: 303, Delivered: 9_697}, Latency{Lost: 303}, "arrived changed", "corrupt<=0"},
		"another header": {lie(33, changed(func(s sent, b []byte) []byte {
			b[int(s.seq)*7%header] ^= byte(1 + s.seq%255)
			return b
		})), Result{Corrupt: 303, Delivered: 9_697}, Latency{Lost: 303}, "arrived changed", "corrupt<=0"},
		"late": {lie(11, func(sent) []copied { return deliver(300 * time.Millisecond) }),
			Result{Reordered: 909, Delivered: 10_000}, Latency{}, "arrived after a later one", ""},
		"none": {nil, Result{Delivered: 10_000}, Latency{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := lyingRelay{relay: c.relay}.simulate(t, lyingConfig())
			within2(t, "delivered", r.Delivered, c.want.Delivered)
			within2(t, "duplicated", r.Duplicated, c.want.Duplicated)
			within2(t, "reordered", r.Reordered, c.want.Reordered)
			within2(t, "misdelivered", r.Misdelivered, c.want.Misdelivered)
			within2(t, "corrupt", r.Corrupt, c.want.Corrupt)
			within2(t, "lost", r.Latency.Lost, c.total.Lost)
			if len(r.Errors) > 0 {
				t.Errorf("errors %v", r.Errors)
			}
			if got := r.Reasons(limitServer); !r.Valid || !strings.Contains(got, c.reason) || (got == "") != (c.reason == "") {
				t.Errorf("valid %v, the server: %q", r.Valid, got)
			}
			if got := fmt.Sprint(Missed(nil, &r)); got != "["+c.fails+"]" {
				t.Errorf("without conditions fails %s, want %s", got, c.fails)
			}
		})
	}
}
