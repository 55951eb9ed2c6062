package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

const (
	// slack is the time limit of a run beyond its duration, for set-up.
	slack = 30 * time.Second
	// maxSteal is the highest acceptable share of time taken by the hypervisor.
	maxSteal = 0.01
	maxLoss  = 0.001
)

// sample is one run of one peer.
type sample struct {
	Scenario string       `json:"scenario"`
	Peer     string       `json:"peer"`
	Round    int          `json:"round"` // from 1
	Step     string       `json:"step"`  // rate or closed
	Rate     float64      `json:"rate"`  // requested rate, or 0
	Tries    int          `json:"tries"` // number of tries; this is the last
	Bad      string       `json:"bad,omitempty"`
	Result   bench.Result `json:"result"`
}

// errInterrupted is returned after an interrupted session has reported.
var errInterrupted = errors.New("interrupted")

// session holds everything measured so far.
type session struct {
	o       options
	out     io.Writer
	commit  string
	samples []sample
	faults  []string // runs without a result
}

// measure runs all scenarios and reports, also after an interrupt.
func measure(ctx context.Context, o options) error {
	// The generator never blocks. With a second P, other goroutines of this
	// process on the same processor do not wait for its P.
	runtime.GOMAXPROCS(2)
	if err := o.leaveOut(); err != nil {
		return err
	}
	o.readVersions()
	s := &session{o: o, out: os.Stdout, commit: commit(ctx, o.root)}
	fmt.Fprintf(s.out, "%d rounds, about %v; relays on processor %d, generator on %d\n",
		o.rounds, estimate(o).Round(time.Second), o.serverCPU, o.generatorCPU)
	for _, note := range o.left {
		fmt.Fprintln(s.out, note)
	}
	if err := checkQuiet(ctx); err != nil {
		if ctx.Err() != nil || !o.anyway {
			return err
		}
		fmt.Fprintln(s.out, "WARNING:", err)
	}
	var err error
	for _, sc := range chosen(s.o) {
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

// faultsError returns an error if runs failed.
func faultsError(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%d runs failed, the first: %s", len(faults), faults[0])
}

// scenario keeps all relays running and measures them in turns. Idle relays do
// not affect the results, since CPU time is per process.
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

// turn is one run of one relay, repeated if a cause other than the relay makes
// it invalid. It returns an error only at the end of ctx: it records a failed
// run and stops its relay.
func (s *session) turn(ctx context.Context, sc scenario, p peer, servers map[string]*server, round int, st step) error {
	one := sample{Scenario: sc.name, Peer: p.name, Round: round, Step: st.kind, Rate: st.rate}
	for again := true; again; {
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
		one.Bad = doubt(&one.Result, one.Step)
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

// spoilt reports whether a run is invalid for a reason other than the relay.
func (s *sample) spoilt() bool {
	return s.Bad != "" && !(s.Result.Valid && s.Result.CausedBy("server"))
}

func (s *session) run(ctx context.Context, sc scenario, p peer, servers map[string]*server, one *sample) (err error) {
	srv := servers[p.name]
	if srv == nil {
		if srv, err = p.start(ctx, s.o, sc.shape == "star"); err != nil {
			return err
		}
		servers[p.name] = srv
	}
	cfg := sc.config(s.o, step{one.Step, one.Rate})
	cfg.Transport = srv.transport
	cfg.Label.Name, cfg.Label.Commit, cfg.Label.Command, cfg.ServerPID = p.name, s.commit, s.o.typed(), srv.pid()
	bounded, cancel := context.WithTimeout(ctx, slack+s.o.duration+s.o.warmup)
	defer cancel()
	one.Result, err = bench.Run(bounded, cfg, srv.dialect)
	if srv.dead() {
		err = errors.Join(err, fmt.Errorf("%w: %s", errEnded, srv.errors.String()))
	}
	return err
}

// doubt returns why a run is invalid; "" if it is valid. In a closed loop one side is always the limit, and CPU
// per datagram is valid either way.
func doubt(r *bench.Result, kind string) string {
	switch {
	case r.CausedBy("machine"):
		return r.Reasons("machine")
	case r.CausedBy("generator") && kind == stepRate:
		return "the generator was the limit: " + r.Reasons("generator")
	case r.LossRatio > maxLoss:
		return fmt.Sprintf("%.2f %% lost", 100*r.LossRatio)
	case r.Delivered == 0:
		return "nothing was delivered"
	case r.Server.PerDatagram <= 0:
		return "the relay's CPU time was not measured"
	}
	return ""
}

const (
	// quietTime is how long checkQuiet looks at a machine.
	quietTime = 2 * time.Second
	// maxBusy is the share of the processors' time that other processes may take, as in package bench.
	maxBusy = 0.05
)

// checkQuiet returns an error that says what to do if others use this machine. It measures
// nothing itself meanwhile.
func checkQuiet(ctx context.Context) error {
	before, err := readProcessorTime()
	if err != nil {
		return err
	}
	select {
	case <-time.After(quietTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := readProcessorTime()
	if err != nil {
		return err
	}
	return after.sub(before).judge()
}

// processorTime is the time of all processors, in seconds.
type processorTime struct{ total, idle, steal float64 }

func readProcessorTime() (t processorTime, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return t, err
	}
	stat, err := fs.Stat()
	c := stat.CPUTotal // Guests are part of the user's time.
	t = processorTime{idle: c.Idle + c.Iowait, steal: c.Steal}
	t.total = t.idle + t.steal + c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ
	return t, err
}

func (t processorTime) sub(u processorTime) processorTime {
	return processorTime{t.total - u.total, t.idle - u.idle, t.steal - u.steal}
}

// judge returns an error for a machine that is not quiet.
func (t processorTime) judge() error {
	if t.total <= 0 {
		return nil
	}
	steal, busy := t.steal/t.total, (t.total-t.idle-t.steal)/t.total
	advice := ""
	switch {
	case busy > maxBusy:
		advice = "stop what runs (top shows it) or wait, and start again"
	case steal > maxSteal:
		advice = "other guests of the hypervisor run: start again later, or on another machine"
	default:
		return nil
	}
	return fmt.Errorf("this machine is busy, so that few runs would count: other processes take %.0f %% of its processors, of at most %.0f %%, "+
		"and the hypervisor %.1f %%, of at most %.0f %%; %s; or measure nevertheless: make peers PEERS=--anyway",
		100*busy, 100*maxBusy, 100*steal, 100*maxSteal, advice)
}

// progress returns the output line of a run.
func progress(one *sample) string {
	r := &one.Result
	text := fmt.Sprintf("round %d  %-9s %-12s %9s/s  CPU %6.2f µs  p50 %8s  p99 %8s",
		one.Round, one.Scenario, one.Peer, thousands(r.DeliveredRate), r.Server.PerDatagram/1e3,
		figures.Time.Format(float64(r.Latency.P50)), figures.Time.Format(float64(r.Latency.P99)))
	if one.Step == stepClosed {
		text += "  closed loop"
	}
	if one.Bad != "" {
		text += "  DOES NOT COUNT: " + one.Bad
	}
	return text
}
