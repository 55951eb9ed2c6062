package bench

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// generators are those that make a tenth of the load each.
const generators = 10

// part is what generator n of 10 sees of a relay that treats a datagram by flow and number: its
// flows are the n-th tenth of all.
func part(t *testing.T, n int) Result {
	t.Helper()
	cfg := lyingConfig()
	flows := 1000 * generators
	if n < 0 { // one generator that has all flows
		n, cfg.Matches, cfg.Rate = 0, cfg.Matches*generators, cfg.Rate*generators
	}
	return lyingRelay{
		relay: func(s sent) []copied {
			flow := (s.flow + n*10) % flows
			switch hash := (uint32(flow)*2654435761 + s.seq*40503) >> 7 % 1000; {
			case hash < 3, flow == 42 && s.seq > 400 && s.seq < 700: // the latter for 3 s
				return nil
			case hash < 5:
				return append(deliver(relayTime), deliver(2*relayTime)...)
			case hash < 20:
				return deliver(time.Duration(hash) * 7 * relayTime)
			default:
				return deliver(relayTime + time.Duration(hash)*time.Microsecond)
			}
		},
		lag: func(s sent) time.Duration { return time.Duration((s.flow+n*10)%7) * 10 * time.Microsecond },
	}.simulate(t, cfg)
}

// TestMergeEqualsOne: the merge of the results of ten generators, read from their files, has the
// figures of one generator that made the whole load.
func TestMergeEqualsOne(t *testing.T) {
	t.Parallel()
	one := part(t, -1)
	all := make([]Result, generators)
	for n := range all {
		text, err := json.Marshal(part(t, n))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all[n]); err != nil {
			t.Fatal(err)
		}
		all[n].Started = one.Started // The simulations were one after the other.
	}
	got, err := Merge(all...)
	if err != nil {
		t.Fatal(err)
	}
	one.Load.Sockets = generators
	if got.Generators != generators {
		t.Errorf("%d generators", got.Generators)
	}
	if one.Lost == 0 || one.Duplicated == 0 || one.Latency.P999 != Never || one.Gaps.Endpoint < time.Second {
		t.Errorf("the load shows too little: lost %d, twice %d, p99.9 %v, %+v", one.Lost, one.Duplicated, one.Latency.P999, one.Gaps)
	}
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"offered", got.Offered, one.Offered}, {"sent", got.Sent, one.Sent}, {"delivered", got.Delivered, one.Delivered},
		{"lost", got.Lost, one.Lost}, {"duplicated", got.Duplicated, one.Duplicated}, {"reordered", got.Reordered, one.Reordered},
		{"loss", got.LossRatio, one.LossRatio}, {"latency", got.Latency, one.Latency}, {"lag", got.Generator.Lag, one.Generator.Lag},
		{"load", got.Load, one.Load}, {"measured", got.Measured, one.Measured}, {"wire bytes", got.WireBytes, one.WireBytes},
		{"causes", got.Causes, one.Causes}, {"valid", got.Valid, one.Valid}, {"machine", got.Machine, one.Machine},
		{"endpoints", got.Gaps.Endpoints, one.Gaps.Endpoints}, {"endpoints with a gap", got.Gaps.Over, one.Gaps.Over},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, c.got, c.want)
		}
	}
	within2(t, "offered rate", got.OfferedRate, one.OfferedRate)
	within2(t, "delivered rate", got.DeliveredRate, one.DeliveredRate)
	within2(t, "gap of an endpoint", got.Gaps.Endpoint, one.Gaps.Endpoint)
	for _, r := range all {
		if got.Gaps.Longest < r.Gaps.Longest {
			t.Errorf("longest gap %v, and %v of one generator", got.Gaps.Longest, r.Gaps.Longest)
		}
	}
	if len(got.Seconds) != len(one.Seconds) {
		t.Fatalf("%d seconds, want %d", len(got.Seconds), len(one.Seconds))
	}
	// In its second a datagram may be in the next one, since a tenth of the flows has other phases in a tick.
	var delivered [2]uint64
	for i, s := range one.Seconds {
		within2(t, "offered in a second", got.Seconds[i].Offered, s.Offered)
		if s.Offered > 0 {
			within2(t, "median of a second", got.Seconds[i].P50, s.P50)
		}
		delivered[0] += got.Seconds[i].Delivered
		delivered[1] += s.Delivered
	}
	if delivered[0] != delivered[1] {
		t.Errorf("%d delivered in all seconds, want %d", delivered[0], delivered[1])
	}
}

// TestMergeAgain: the order and grouping of merges does not matter.
func TestMergeAgain(t *testing.T) {
	t.Parallel()
	a, b, c := part(t, 0), part(t, 1), part(t, 2)
	b.Started, c.Started = a.Started, a.Started
	first, err := Merge(b, a)
	if err != nil {
		t.Fatal(err)
	}
	left, err := Merge(first, c)
	if err != nil {
		t.Fatal(err)
	}
	right, err := Merge(a, b, c)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(left, right) {
		t.Errorf("%+v\n%+v", left, right)
	}
}

// TestMergeRefuses: only results of one load on one relay are merged, and the reason names what differs.
func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	good := part(t, 0)
	for want, change := range map[string]func(*Result){
		"payload is 112 and 100":             func(r *Result) { r.Load.Payload = 100 },
		"shape is pairs and star":            func(r *Result) { r.Load.Shape = ShapeStar },
		"duration is 10s and 5s":             func(r *Result) { r.Load.Duration = 5 * time.Second },
		`dialect is "direct" and "ferry"`:    func(r *Result) { r.Dialect = "ferry" },
		`limits is "off" and "on"`:           func(r *Result) { r.Limits = "on" },
		`version is "2" and "1"`:             func(r *Result) { r.Version = 1 },
		"result 2 is of a search":            func(r *Result) { r.Search = new(Search) },
		"samples has no histogram":           func(r *Result) { r.Latency.Histogram = "" },
		"a histogram has":                    func(r *Result) { r.Latency.Samples++ },
		"histogram: illegal base64":          func(r *Result) { r.Seconds[3].Histogram = "?" },
		"processes of two servers":           func(r *Result) { r.Server.PID = 6 },
		"align is even and tick; payload is": func(r *Result) { r.Load.Payload, r.Load.Align = 100, AlignTick },
	} {
		a, b := good, good
		a.Limits, a.Server.PID = "off", 5
		b.Seconds = append([]Second(nil), good.Seconds...)
		change(&b)
		if _, err := Merge(a, b); !errors.Is(err, ErrMerge) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Merge(); !errors.Is(err, ErrMerge) {
		t.Errorf("no results: %v", err)
	}
}

// TestMergeValidity: one invalid result makes the merge invalid, as does a late start.
func TestMergeValidity(t *testing.T) {
	t.Parallel()
	a := part(t, 0)
	b, late, stopped := a, a, a
	b.Valid, b.Causes = false, []Cause{{LimitMachine, "It was busy."}}
	late.Started = late.Started.Add(3 * time.Second)
	stopped.markInterrupted()
	for want, other := range map[string]Result{
		"Generator 2 of 2: It was busy.":   b,
		"The generators began up to 3s ap": late,
		"Generator 2 of 2: It was stopped": stopped,
	} {
		r, err := Merge(a, other)
		if err != nil || r.Valid || !strings.Contains(r.InvalidReason(), want) {
			t.Errorf("%v: valid %v: %s", err, r.Valid, r.InvalidReason())
		}
	}
}

// TestMergeMachines: the counters of a machine count once, and the server's use of the processor is
// for the datagrams of all generators.
func TestMergeMachines(t *testing.T) {
	t.Parallel()
	at := func(machine string, pid int, errs, others, arrived uint64) Result {
		return Result{
			Origin:    Origin{Version: ResultVersion, Machine: Machine{ID: machine, CPU: "A CPU", Cores: 4}},
			Generator: Generator{Process: Process{Datagrams: arrived, Run: time.Second}},
			Server:    Process{PID: pid, Run: time.Duration(pid) * time.Second, Datagrams: arrived},
			System:    System{RcvbufErrors: errs, OtherRcvbufErrors: others, Idle: time.Second},
		}
	}
	r, err := Merge(at("a", 3, 50, 40, 1e6), at("a", 0, 52, 30, 2e6), at("b", 0, 7, 7, 0))
	if err != nil {
		t.Fatal(err)
	}
	if r.System.RcvbufErrors != 59 || r.System.OtherRcvbufErrors != 52-10-22+7 || r.System.Idle != 2*time.Second {
		t.Errorf("%+v", r.System)
	}
	if r.Server.Run != 3*time.Second || r.Server.Datagrams != 3e6 || math.Abs(r.Server.PerDatagram-1000) > 1e-6 {
		t.Errorf("%+v", r.Server)
	}
	if r.Machine.Cores != 8 || r.Machine.CPU != "2 machines: A CPU" || r.Machine.ID == "a" || r.Generator.Process.Run != 3*time.Second {
		t.Errorf("%+v", r.Machine)
	}
}

// TestStartAt: generators with the same time to start at begin together, whenever they are ready.
func TestStartAt(t *testing.T) {
	all := make([]Result, 4) // The last has the shape netcode.
	errs := make([]error, len(all))
	isLate := func(err error) bool { return errors.Is(err, ErrLate) }
	var at time.Time
	for lead := time.Second; lead == time.Second || slices.ContainsFunc(errs, isLate); lead *= 2 { // A busy machine needs longer.
		at = time.Now().Add(lead)
		var wg sync.WaitGroup
		for n := range all {
			wg.Go(func() {
				cfg := smallConfig(ShapePairs)
				if n == 3 {
					cfg.Shape = ShapeNetcode
				}
				cfg.Rate, cfg.Warmup, cfg.Generator.StartAt = 300, 50*time.Millisecond, at
				all[n], errs[n] = Run(t.Context(), cfg, benchrig.Direct{Header: benchrig.DefaultHeader})
			})
		}
		wg.Wait()
	}
	for n, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
		if off := all[n].Started.Sub(at.Add(50 * time.Millisecond)).Abs(); off > 10*time.Millisecond {
			t.Errorf("generator %d began %v off", n, off)
		}
	}
	if n := all[3].Netcode; n.Ended > 0 || all[3].Offered == 0 {
		t.Errorf("%d offered, %+v", all[3].Offered, n)
	}
	r, err := Merge(all[:3]...)
	if err != nil || r.Offered != all[0].Offered*3 || r.Offered == 0 {
		t.Errorf("%v: %+v", err, r)
	}
	for want, start := range map[string]time.Time{"ago": at, "ahead, limit 1h": time.Now().Add(2 * time.Hour)} {
		cfg := smallConfig(ShapePairs)
		cfg.Generator.StartAt = start
		if _, err := Run(t.Context(), cfg, benchrig.Direct{}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
