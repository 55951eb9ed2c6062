package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Run sets up the endpoints of cfg on the relay of d, loads it, and returns the
// measurements. It blocks for set-up, Warmup, Duration and at most Drain. A Result with
// losses is not an error. Errors wrap ErrConfig, ErrRemote, ErrLate, an error of the set-up or of
// the kernel, that of reading the server's process, or that of ctx. With ErrServerEnded the
// Result is complete but for the server's use of the processor. When ctx ends
// first, the Result is about the part before: datagrams in flight have the time of
// Drain to arrive, and Interrupted is true.
func Run(ctx context.Context, cfg Config, d Dialect) (Result, error) {
	b, res, err := openTestbed(ctx, cfg, d)
	if err != nil {
		return res, err
	}
	res, err = b.measure(ctx, b.cfg)
	return res, errors.Join(err, b.rig.Close())
}

// testbed is a rig that is ready for runs.
type testbed struct {
	cfg     Config // with defaults
	plan    benchrig.Plan
	dialect benchrig.Dialect
	rig     *benchrig.Rig
	setup   Setup // without Handshake, which the rig counts
	another bool  // the process of ServerPID has no socket of the relay
}

// openTestbed sets up. When ctx ends meanwhile, the Result says what was asked for.
func openTestbed(ctx context.Context, cfg Config, d Dialect) (*testbed, Result, error) {
	dialect, ok := d.(benchrig.Dialect)
	if !ok {
		return nil, Result{}, fmt.Errorf("%w: dialect %T is none of Ferry's", ErrConfig, d)
	}
	cfg, err := cfg.withDefaults(d)
	if err != nil {
		return nil, Result{}, err
	}
	p, err := cfg.plan()
	if err != nil {
		return nil, Result{}, err
	}
	b := &testbed{cfg: cfg, plan: p, dialect: dialect}
	if err = b.open(ctx); err == nil {
		return b, Result{}, nil
	}
	if ctx.Err() == nil {
		return nil, Result{}, err
	}
	res := newResult(&cfg, d, &p)
	res.markInterrupted()
	return nil, res, err
}

// open makes the rig and checks it against the plan.
func (b *testbed) open(ctx context.Context) (err error) {
	var before uint64
	if b.cfg.ServerPID != 0 {
		if before, err = readRSS(b.cfg.ServerPID); err != nil {
			return err
		}
	}
	begin := time.Now()
	if b.rig, err = b.dialect.Open(ctx, b.plan); err != nil {
		return fmt.Errorf("bench: set up %s: %w", b.dialect.Name(), err)
	}
	b.setup = Setup{Duration: time.Since(begin), Requests: b.rig.Requests, RSSBefore: before}
	if b.cfg.ServerPID != 0 {
		b.setup.RSSAfter, err = readRSS(b.cfg.ServerPID)
	}
	if err = errors.Join(err, b.rig.Check()); err != nil {
		return errors.Join(err, b.rig.Close())
	}
	if b.cfg.ServerPID != 0 {
		protocol := "udp"
		if b.cfg.Transport.IsTCP() {
			protocol = "tcp"
		}
		owns, known := ownsPort(b.cfg.ServerPID, protocol, b.rig.Flows[0].Dst.Port())
		b.another = known && !owns
	}
	return nil
}

// measure does one run. cfg differs from b.cfg in rate and name at most. With
// ctx's error it returns what was seen until then.
func (b *testbed) measure(ctx context.Context, cfg Config) (Result, error) {
	res := newResult(&cfg, b.dialect, &b.plan)
	var play *netplay
	var err error
	if cfg.Shape == ShapeNetcode {
		if play, err = newNetplay(ctx, &cfg, b.rig); err != nil {
			return res, err
		}
	}
	metrics, err := cfg.readMetrics(ctx)
	if err != nil {
		return res, err
	}
	if late := startDelay - int64(time.Until(cfg.StartAt)); late > 0 && !cfg.StartAt.IsZero() {
		return Result{}, fmt.Errorf("%w: the endpoints were ready %v after the time to start at, %s", ErrLate, roundDigits(time.Duration(late)),
			cfg.StartAt.Format(time.RFC3339))
	}
	g := newGenerator(&cfg, b.rig, rand.Uint32())
	if g.play = play; play != nil {
		play.send = g.queueDriverPacket
	}
	g.replacer = newReplacer(&cfg, b.dialect, b.rig)
	o := newObserver(g, cfg.ServerPID)
	clock := time.Now().Add(-time.Duration(sock.Now()))
	res.Started = clock.Add(time.Duration(g.measure)).UTC().Truncate(time.Millisecond)

	var beside, replacing sync.WaitGroup
	lasts := time.Until(clock.Add(time.Duration(g.end)))
	beside.Go(func() { res.Churn = b.churn(ctx, &cfg, lasts) })
	calls := b.newAllocationLoad(&cfg, clock.Add(time.Duration(g.split)), clock.Add(time.Duration(g.end)))
	beside.Go(func() { calls.Run(ctx) })
	replaceCtx, stopReplacing := context.WithCancel(ctx)
	defer stopReplacing()
	from, until := g.measure, g.end // An interrupt changes the end.
	replacing.Go(func() { g.replacer.Run(replaceCtx, clock, from, until) })
	observing, stopObserving := context.WithCancel(ctx)
	defer stopObserving()
	beside.Go(func() { o.Run(observing) })
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // a pinned thread ends with its goroutine
	err = <-ran
	stopObserving()
	beside.Wait()
	stopReplacing()
	replacing.Wait()
	res.Replaced = g.replacer.report()

	if g.interrupted {
		o.err = nil // the server may have ended with the run
	}
	var ended error
	if len(o.readings) > 1 && errors.Is(o.err, fs.ErrNotExist) {
		ended = fmt.Errorf("%w: its processor time is not known", ErrServerEnded)
		o.err, o.serverPID = nil, 0
	}
	if err = errors.Join(err, o.err); err != nil {
		return Result{}, err
	}
	res.Setup = b.setup
	res.Setup.Handshake = b.rig.Handshakes
	g.collect(&res, o)
	res.Server.NoSocket = b.another && res.Server.PID != 0
	res.Control = g.control(o, calls.report(&res))
	if cfg.Metrics != nil {
		after, err := cfg.readMetrics(context.WithoutCancel(ctx))
		if res.Relay = newRelay(metrics, after); err != nil { // It may have ended with the run.
			res.Relay = newRelay("", metrics)
			res.Relay.Drops, res.Relay.Limited = nil, 0
			res.Errors["metrics of the relay not read"]++
		}
	}
	res.findCauses(&cfg)
	if g.interrupted {
		res.markInterrupted()
		return res, ctx.Err()
	}
	return res, ended
}

// Control has the results of load on the control plane, and of forwarding without and
// with that load.
type Control struct {
	// Without is the first part of the measured interval, in which there were
	// neither BINDs nor calls of the API. Nil without Config.Baseline.
	Without *Part `json:"without,omitempty"`
	With    Part  `json:"with"` // the rest of it
	// P99Moved is the p99 of the latency in With minus that in Without, 0 unless
	// both have samples.
	P99Moved time.Duration `json:"p99MovedNs" merge:"-"`

	Binds       *Calls `json:"binds,omitempty"`
	Allocations *Calls `json:"allocations,omitempty"`
}

// Part has the results of forwarding in a part of the measured interval. Datagrams
// belong to the part in which they were due.
type Part struct {
	Duration      time.Duration `json:"durationNs"`
	Offered       uint64        `json:"offered"`
	Sent          uint64        `json:"sent"`
	Delivered     uint64        `json:"delivered"`
	Lost          uint64        `json:"lost"`
	LossRatio     float64       `json:"lossRatio" merge:"-"`
	DeliveredRate float64       `json:"deliveredRate"` // datagrams/s
	Latency       Latency       `json:"latency"`
	// Lag is that of the generator: the share of Latency that is not the server's.
	Lag    Latency `json:"lag"`
	Server Process `json:"server" merge:"first"` // zero without Config.ServerPID
}

// Calls are requests of one kind to the control plane. Counts are of those that
// were due while it had work and the interval was measured.
type Calls struct {
	Duration time.Duration `json:"durationNs"` // in which they were due
	Offered  uint64        `json:"offered"`    // due; without a rate the same as Sent
	Sent     uint64        `json:"sent"`
	Answered uint64        `json:"answered"`
	Refused  uint64        `json:"refused"` // an error as the answer, or no answer; see Result.Errors
	// AnsweredRate is Answered per second.
	AnsweredRate float64 `json:"answeredRate"`
	// Latency is that of the answered ones, from the time at which they were
	// due. A call of the API for which a worker was waiting counts from when it
	// began instead, since a late wake-up is not the server's delay.
	Latency Latency `json:"latency"`
}

// Compares reports whether both without and with the work there is a p99, and it is no lost one
// without: only then P99Moved means something. c may be nil.
func (c *Control) Compares() bool {
	return c != nil && c.Without != nil && c.Without.Latency.P99 > 0 && c.Without.Latency.P99 < Never && c.With.Latency.P99 > 0
}

// setRate computes what follows from the counts.
func (c *Calls) setRate(lasted time.Duration) *Calls {
	c.Duration = lasted
	if lasted > 0 {
		c.AnsweredRate = float64(c.Answered) / lasted.Seconds()
	}
	return c
}

// portion is what the generator counts in a part of the measured interval, with the latency of
// datagrams and the lag of the generator.
type portion struct {
	queued, failed, blocked, delivered uint64
	latency, lag                       *hdrhistogram.Histogram
}

func newPortion() portion { return portion{latency: newHistogram(3), lag: newHistogram(3)} }

func (p *portion) add(o *portion) {
	p.queued += o.queued
	p.failed += o.failed
	p.blocked += o.blocked
	p.delivered += o.delivered
	p.latency.Merge(o.latency)
	p.lag.Merge(o.lag)
}

// portionOf returns the portion that a datagram belongs to by the time it was
// due; nil outside of the measured interval.
func (g *generator) portionOf(due int64) *portion {
	switch {
	case due < g.measure || due >= g.end:
		return nil
	case due < g.split:
		return &g.portions[0]
	}
	return &g.portions[1]
}

// part reports on a portion, which lasted from one time to another.
func (g *generator) part(p *portion, from, to int64) Part {
	r := Part{
		Duration: time.Duration(to - from), Offered: p.queued, Sent: p.queued - p.failed - p.blocked, Delivered: p.delivered,
		Lag: newLatency(p.lag, 0, false),
	}
	if g.schedule != nil {
		r.Offered = g.schedule.before(to) - g.schedule.before(from)
	}
	r.Lost = r.Sent - min(r.Delivered, r.Sent)
	r.Latency = newLatency(p.latency, missing(r.Delivered, r.Offered), true)
	r.LossRatio = lossRatio(r.Delivered, r.Offered)
	if to > from {
		r.DeliveredRate = float64(r.Delivered) / r.Duration.Seconds()
	}
	return r
}

// control reports on the work of the control plane, nil if there was none.
func (g *generator) control(o *observer, allocations *Calls) *Control {
	if !g.cfg.loadsControlPlane() {
		return nil
	}
	from, end := g.controlled()
	c := &Control{With: g.part(&g.portions[1], from, end), Allocations: allocations}
	if g.cfg.BindRate > 0 {
		c.Binds = g.binds.report(from, end)
	}
	c.With.Server = o.serverUse(len(o.readings)-2, len(o.readings)-1)
	if g.cfg.Baseline == 0 {
		return c
	}
	without := g.part(&g.portions[0], g.measure, from)
	without.Server = o.serverUse(0, 1)
	c.Without = &without
	if len(o.readings) < 3 {
		c.With.Server = Process{}
	}
	c.setMoved()
	return c
}

func (c *Control) setMoved() {
	if c.Compares() {
		c.P99Moved = c.With.Latency.P99 - c.Without.Latency.P99
		if c.With.Latency.P99 == Never {
			c.P99Moved = Never
		}
	}
}

// controlled is the part of the measured interval with work for the control
// plane, in ns of sock.Now. It is empty if the run ended before it.
func (g *generator) controlled() (from, end int64) {
	end = max(g.end, g.measure)
	return min(max(g.split, g.measure), end), end
}
