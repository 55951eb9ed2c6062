package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
)

const (
	// searchWarmup is that of each run in a search for the highest rate.
	searchWarmup = 300 * time.Millisecond
	// carried is when a rate counts as carried. The time is from when a
	// datagram was due: a queue that grows, at the generator or at the relay,
	// would pass for a carried rate in a short run.
	carried = "loss<0.1%,p99<50ms"
	// slack is what a run may take beyond its own time, for set-up.
	slack = 30 * time.Second
	// maxSteal is the share of time that the hypervisor may take.
	maxSteal = 0.01
	maxLoss  = 0.001
)

// sample is one run of one peer.
type sample struct {
	Scenario string       `json:"scenario"`
	Peer     string       `json:"peer"`
	Round    int          `json:"round"` // from 1
	Step     string       `json:"step"`  // rate, closed, or search: then the run with the highest rate found
	Rate     float64      `json:"rate"`  // asked for, else 0
	Tries    int          `json:"tries"` // this is the last of so many
	Bad      string       `json:"bad,omitempty"`
	Result   bench.Result `json:"result"`
}

// errInterrupted ends a session that reports on what it has.
var errInterrupted = errors.New("interrupted")

// session is one execution: everything that was measured so far.
type session struct {
	o       options
	out     io.Writer
	commit  string
	samples []sample
	faults  []string // runs that gave no result
}

// measure runs all scenarios and reports, also on what there is when it is
// interrupted.
func measure(ctx context.Context, o options) error {
	// This process has one processor, but its generator never stops: with a
	// second P the rest of it need not take the generator's away.
	runtime.GOMAXPROCS(2)
	s := &session{o: o, out: os.Stdout, commit: commit(ctx, o.root)}
	fmt.Fprintf(s.out, "%d rounds, about %v; relays on processor %d, generator on %d\n",
		o.rounds, estimate(o).Round(time.Second), o.serverCPU, o.generatorCPU)
	if w := busy(); w != "" {
		fmt.Fprintln(s.out, w)
	}
	var err error
	for _, sc := range chosen(o) {
		if err = s.scenario(ctx, sc); err != nil {
			break
		}
	}
	if len(s.samples) == 0 {
		return errors.Join(err, faultsError(s.faults))
	}
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if err != nil {
		fmt.Fprintln(s.out, "\nNOT COMPLETE:", err)
	}
	return errors.Join(err, s.report(), faultsError(s.faults))
}

// faultsError makes the exit code say that runs failed.
func faultsError(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%d runs failed, the first: %s", len(faults), faults[0])
}

// scenario keeps all relays running and takes turns. The idle ones wait in the
// kernel; what they still use does not count, since CPU time is per process.
func (s *session) scenario(ctx context.Context, sc scenario) error {
	players := sc.players(s.o)
	servers := map[string]*server{}
	defer func() {
		for _, srv := range servers {
			srv.stop()
		}
	}()
	for round := 1; round <= s.o.rounds; round++ {
		order := slices.Clone(players)
		if round%2 == 0 {
			slices.Reverse(order)
		}
		for _, st := range sc.steps() {
			for _, p := range order {
				if err := s.turn(ctx, sc, p, servers, round, st); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// turn is one run of one peer, repeated while something else than the relay
// spoils it. Only the end of ctx is an error: a run that fails is noted, and its
// relay started again.
func (s *session) turn(ctx context.Context, sc scenario, p peer, servers map[string]*server, round int, st step) error {
	one := sample{Scenario: sc.name, Peer: p.name, Round: round, Step: st.kind, Rate: st.rate}
	for again := true; again; {
		one.Bad = ""
		one.Tries++
		err := s.run(ctx, sc, p, servers, &one)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.fail(fmt.Sprintf("%s, %s, round %d: %v", sc.name, p.name, round, err))
			if srv := servers[p.name]; srv != nil {
				srv.stop()
				delete(servers, p.name)
			}
			return nil
		}
		if one.Bad == "" {
			one.Bad = doubt(&one.Result, one.Step)
		}
		fmt.Fprintln(s.out, progress(&one))
		again = one.spoilt() && one.Tries <= s.o.retries && (round > 1 || s.o.rounds == 1)
	}
	s.samples = append(s.samples, one)
	return nil
}

func (s *session) fail(fault string) {
	fmt.Fprintln(s.out, "FAILED", fault)
	s.faults = append(s.faults, fault)
}

// spoilt reports whether a run does not count for a reason that is not the
// relay's. A search takes too long to be repeated.
func (s *sample) spoilt() bool {
	return s.Bad != "" && s.Step != stepSearch && s.Result.Limit != bench.LimitServer
}

func (s *session) run(ctx context.Context, sc scenario, p peer, servers map[string]*server, one *sample) (err error) {
	srv := servers[p.name]
	if srv == nil {
		if srv, err = p.start(ctx, s.o, sc.shape == bench.ShapeStar); err != nil {
			return err
		}
		servers[p.name] = srv
	}
	cfg := sc.config(s.o, step{one.Step, one.Rate})
	cfg.Name, cfg.Commit, cfg.Command, cfg.ServerPID = p.name, s.commit, s.o.typed(), srv.pid()
	limit := slack + s.o.duration + s.o.warmup
	if one.Step == stepSearch {
		limit = 5 * time.Minute
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if one.Step == stepSearch {
		one.Result, one.Bad, err = s.search(bounded, cfg, srv)
		if errors.Is(err, bench.ErrNoRate) {
			one.Bad, err = "no rate without loss was found", nil
		}
	} else {
		one.Result, err = bench.Run(bounded, cfg, srv.dialect)
	}
	if srv.dead() {
		err = errors.Join(err, fmt.Errorf("%w: %s", errEnded, srv.errors.String()))
	}
	return err
}

// search looks for the highest rate without loss, beginning at the highest of
// the open loop, and says why what it found does not count; "" if it does.
func (s *session) search(ctx context.Context, cfg bench.Config, srv *server) (bench.Result, string, error) {
	criterion, err := bench.ParseThresholds(carried)
	if err != nil {
		return bench.Result{}, "", err
	}
	cfg.Rate = s.o.rates[len(s.o.rates)-1]
	cfg.Duration, cfg.Warmup = s.o.maxStep, searchWarmup
	best, all, err := bench.FindMax(ctx, cfg, srv.dialect, criterion)
	return best, ceiling(&best, all), err
}

// ceiling says that it was not the relay that failed at the lowest rate above
// the best: it loses datagrams when it does, and not on the generator's sockets.
func ceiling(best *bench.Result, all []bench.Result) string {
	lowest, why := 0.0, "no rate failed"
	for i := range all {
		r := &all[i]
		rate := r.Load.Rate
		switch {
		case rate <= best.Load.Rate || lowest > 0 && rate > lowest:
		case r.LossRatio > maxLoss && r.Generator.Drops == 0:
			lowest, why = rate, ""
		case rate != lowest || why != "":
			lowest, why = rate, fmt.Sprintf("the generator was the limit above %s/s: %s", thousands(best.Load.Rate), r.LimitReason)
		}
	}
	return why
}

// doubt says why a run does not count; "" if it does. Of a search, ceiling
// judges the generator; in a closed loop one side has to be the limit, and CPU
// per datagram is true either way.
func doubt(r *bench.Result, kind string) string {
	sys := r.System
	total := sys.User + sys.Kernel + sys.SoftIRQ + sys.Steal + sys.Idle
	switch {
	case total > 0 && float64(sys.Steal) > maxSteal*float64(total):
		return fmt.Sprintf("the hypervisor took %.1f %% of the time", 100*float64(sys.Steal)/float64(total))
	case r.Limit == bench.LimitGenerator && kind == stepRate:
		return "the generator was the limit: " + r.LimitReason
	case r.LossRatio > maxLoss:
		return fmt.Sprintf("%.2f %% lost", 100*r.LossRatio)
	case r.Delivered == 0:
		return "nothing was delivered"
	case r.Server.PerDatagram <= 0:
		return "the relay's CPU time was not measured"
	}
	return ""
}

// maxLoad is the load average of a machine that is idle enough.
const maxLoad = 0.5

// busy warns of others on this machine; "" if there are none.
func busy() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	word, _, _ := strings.Cut(string(text), " ")
	if load, err := strconv.ParseFloat(word, 64); err != nil || load <= maxLoad {
		return ""
	}
	return "WARNING: the load average is " + word + ": others run on this machine, and many runs will not count"
}

// progress is the line of a run.
func progress(one *sample) string {
	r := &one.Result
	text := fmt.Sprintf("round %d  %-9s %-12s %9s/s  CPU %6.2f µs  p50 %7.1f µs  p99 %8.1f µs",
		one.Round, one.Scenario, one.Peer, thousands(r.DeliveredRate), r.Server.PerDatagram/1e3,
		float64(r.Latency.P50)/1e3, float64(r.Latency.P99)/1e3)
	switch one.Step {
	case stepSearch:
		text += "  highest without loss"
	case stepClosed:
		text += "  closed loop"
	}
	if one.Bad != "" {
		text += "  DOES NOT COUNT: " + one.Bad
	}
	return text
}
