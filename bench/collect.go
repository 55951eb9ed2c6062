package bench

import (
	"fmt"
	"time"
)

// newResult repeats what was asked for. p may be the zero Plan.
func newResult(cfg *Config, d Dialect, p *Plan) Result {
	return Result{
		Version: ResultVersion, Name: cfg.Name, Command: cfg.Command, Commit: cfg.Commit,
		Started: time.Now().UTC().Truncate(time.Millisecond),
		Machine: ThisMachine(), Dialect: d.Name(), Limits: cfg.Limits, Load: cfg.load(p), Limit: LimitNone,
	}
}

func (cfg *Config) load(p *Plan) Load {
	return Load{
		Shape: cfg.Shape, Direction: cfg.Direction, Align: cfg.Align,
		Matches: cfg.Matches, Players: cfg.Players,
		Endpoints: p.Len(), Flows: len(p.Flows), Sockets: cfg.Sockets,
		Rate: cfg.Rate, Window: cfg.Window, Payload: cfg.Payload, Snapshot: cfg.Snapshot,
		Duration: cfg.Duration, Warmup: cfg.Warmup, Drain: cfg.Drain, Keepalive: cfg.Keepalive,
		Pinned: cfg.Pin, CPU: cfg.CPU,
		BindRate: cfg.BindRate, AllocateRate: cfg.AllocateRate, AllocateWorkers: cfg.AllocateWorkers, Baseline: cfg.Baseline,
		ChurnRate: cfg.ChurnRate, ChurnPlay: cfg.ChurnPlay,
	}
}

// collect fills in what a generator that has ended counted.
func (g *generator) collect(r *Result, o *observer) {
	c := &g.count
	r.Duplicated, r.Reordered, r.Late = c.duplicated, c.reordered, c.late
	r.Corrupt, r.Misdelivered = c.corrupt, c.misdelivered
	r.BindsSent, r.BindsAnswers, r.Keepalives = c.bindsSent, c.bindsAnswered, c.keepalives
	r.Errors = g.errors
	for i := range g.portions {
		p := &g.portions[i]
		r.Sent += p.queued - p.failed
		r.SendFailed += p.failed
		r.Delivered += p.delivered
	}
	r.Offered = r.Sent + r.SendFailed
	end := max(g.end, g.measure)
	if g.cfg.Rate > 0 {
		queued := r.Offered
		r.Offered = g.sched.before(end) - g.sched.before(g.measure)
		r.Unsent = r.Offered - min(queued, r.Offered)
	}
	r.Lost = r.Sent - min(r.Delivered, r.Sent)
	r.LossRatio = ratio(r.Lost, r.Sent)
	r.Measured = time.Duration(end - g.measure)
	if s := r.Measured.Seconds(); s > 0 {
		r.OfferedRate, r.DeliveredRate = float64(r.Offered)/s, float64(r.Delivered)/s
	}
	for i := range g.flows {
		f := &g.flows[i]
		r.WireBytes = max(r.WireBytes, len(f.prefix)+g.cfg.Payload+g.rig.overhead(int(f.from)))
	}
	for i := range min(int(g.live.second.Load())+1, len(g.seconds)) {
		r.Seconds = append(r.Seconds, g.secondAt(i, g.end))
	}
	all := newTimes().merge(g.portions[0].times, g.portions[1].times)
	r.Latency = summarise(all.latency, true)
	r.Generator.Lag = summarise(all.lag, false)
	if g.play != nil {
		r.Netcode, r.WireBytes = g.play.report(g), g.play.wire
	}
	g.usage(o, r)
}

// usage fills in what the observer has read.
func (g *generator) usage(o *observer, r *Result) {
	c := &g.count
	r.Generator.Drops, r.Generator.SendCalls = g.drops()-g.dropped, c.sendCalls
	r.Generator.SendBatch, r.Generator.RecvBatch = ratio(c.sendEntries, c.sendCalls), ratio(c.recvSlots, c.recvCalls)
	r.Generator.ReadBuffer = g.rig.Sockets[0].Group.Capabilities().ReadBuffer
	if r.Measured > 0 {
		r.Generator.Busy = float64(c.busy) / float64(r.Measured)
	}
	last := len(o.readings) - 1
	if last < 1 {
		return
	}
	a, b := &o.readings[0], &o.readings[last]
	r.Generator.Process = between(o.generatorPID, a.self, b.self, b.arrived-a.arrived)
	r.Server = o.used(0, last)
	r.System = since(a.system, b.system, o.before, readSystem())
}

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// What makes a generator guilty: below these its own delays are lost in what a
// machine of this class does anyway.
const (
	// maxLag is how late 99 % of the datagrams may leave in a run without ticks.
	maxLag = time.Millisecond
	// maxBusy is the share of busy rounds above which a closed loop was limited
	// by the generator.
	maxBusy = 0.97
)

// judge decides who could not keep up.
func (r *Result) judge(cfg *Config) {
	lagLimit := maxLag
	if cfg.Align != AlignEven && cfg.Rate > 0 {
		// What is due at the same time cannot be sent at the same time.
		lagLimit = max(lagLimit, time.Duration(float64(r.Load.Flows)/cfg.Rate*1e9/2))
	}
	generator := func(format string, args ...any) {
		r.Limit, r.LimitReason = LimitGenerator, fmt.Sprintf(format, args...)
	}
	lag := r.Generator.Lag.P99
	if c := r.Control; c != nil {
		lag = max(lag, c.With.Lag.P99) // It is half of the run only.
	}
	switch {
	case r.Generator.Drops > 0:
		generator("The kernel dropped %d datagrams on the generator's own sockets.", r.Generator.Drops)
	case r.SendFailed > 0:
		generator("The kernel refused %d datagrams of the generator.", r.SendFailed)
	case r.Unsent > 0 && (r.Netcode == nil || r.Unsent > r.Netcode.Unsaid):
		generator("The generator did not get to %d datagrams.", r.Unsent)
	case cfg.Rate > 0 && lag > lagLimit:
		generator("The generator fell behind its schedule: 1%% of the datagrams left more than %v late.", forPeople(lag))
	case cfg.Window > 0 && r.Generator.Busy > maxBusy:
		generator("The generator was busy %.0f%% of the time of a closed loop.", 100*r.Generator.Busy)
	case r.Netcode != nil && r.Netcode.Ended > 0:
		r.Limit, r.LimitReason = LimitServer, fmt.Sprintf("%d sides lost their connection.", r.Netcode.Ended)
	case r.Lost > 0:
		r.Limit, r.LimitReason = LimitServer, fmt.Sprintf("%d datagrams were lost between the generator's sockets.", r.Lost)
	case cfg.Window > 0:
		r.Limit, r.LimitReason = LimitServer, "In a closed loop the slower side limits, and the generator had time left."
	default:
		r.Limit, r.LimitReason = LimitNone, ""
	}
}

// forPeople rounds a time to three digits.
func forPeople(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// stopped says that the run ended before its time.
func (r *Result) stopped() {
	r.Interrupted = true
	reason := fmt.Sprintf("It was stopped after %v of the %v to measure.", forPeople(r.Measured), r.Load.Duration)
	if r.Measured == 0 {
		reason = "It was stopped before anything was measured."
	}
	if r.LimitReason != "" {
		reason += " " + r.LimitReason
	}
	r.LimitReason = reason
}
