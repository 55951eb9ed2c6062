package bench

import (
	"fmt"
	"time"
)

// result collects what a generator that has ended counted.
func (g *generator) result(o *observer) Result {
	c := &g.count
	r := Result{
		Version: ResultVersion, Name: g.cfg.Name, Command: g.cfg.Command, Commit: g.cfg.Commit,
		Machine: ThisMachine(), Limits: g.cfg.Limits, Load: g.load(),
		Offered: c.queued, Sent: c.queued - c.failed, SendFailed: c.failed,
		Delivered: c.delivered, Duplicated: c.duplicated, Reordered: c.reordered, Late: c.late,
		Corrupt: c.corrupt, Misdelivered: c.misdelivered,
		Latency:   summarise(g.total, true),
		BindsSent: c.bindsSent, BindsAnswers: c.bindsAnswered, Keepalives: c.keepalives,
		Errors: g.errors,
	}
	if g.cfg.Rate > 0 {
		r.Offered = g.sched.before(g.end) - g.sched.before(g.measure)
		r.Unsent = r.Offered - min(c.queued, r.Offered)
	}
	r.Lost = r.Sent - min(r.Delivered, r.Sent)
	if r.Sent > 0 {
		r.LossRatio = float64(r.Lost) / float64(r.Sent)
	}
	seconds := g.cfg.Duration.Seconds()
	r.OfferedRate, r.DeliveredRate = float64(r.Offered)/seconds, float64(r.Delivered)/seconds
	for i := range g.flows {
		r.WireBytes = max(r.WireBytes, len(g.flows[i].prefix)+g.cfg.Payload)
	}
	for i := range min(int(g.live.second.Load())+1, len(g.seconds)) {
		r.Seconds = append(r.Seconds, g.secondAt(i))
	}
	g.usage(o, &r)
	return r
}

// usage fills in what the observer has read.
func (g *generator) usage(o *observer, r *Result) {
	c := &g.count
	r.Generator = Generator{
		Busy: float64(c.busy) / float64(g.cfg.Duration), Lag: summarise(g.lag, false),
		Drops: g.drops() - g.dropped, SendCalls: c.sendCalls,
		SendBatch: ratio(c.sendEntries, c.sendCalls), RecvBatch: ratio(c.recvSlots, c.recvCalls),
		ReadBuffer: g.rig.Sockets[0].Group.Capabilities().ReadBuffer,
	}
	if !o.measured {
		return
	}
	datagrams := o.arrived[1] - o.arrived[0]
	r.Generator.Process = between(o.generatorPID, o.self[0], o.self[1], datagrams)
	if o.serverPID != 0 {
		r.Server = between(o.serverPID, o.server[0], o.server[1], datagrams)
	}
	r.System = since(o.system[0], o.system[1], o.before, readSystem())
}

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (g *generator) load() Load {
	return Load{
		Shape: g.cfg.Shape, Direction: g.cfg.Direction, Align: g.cfg.Align,
		Matches: g.cfg.Matches, Players: g.cfg.Players,
		Endpoints: len(g.rig.Endpoints), Flows: len(g.flows), Sockets: len(g.rig.Sockets),
		Rate: g.cfg.Rate, Window: g.cfg.Window, Payload: g.cfg.Payload,
		Duration: g.cfg.Duration, Warmup: g.cfg.Warmup, BindRate: g.cfg.BindRate,
		Pinned: g.cfg.Pin, CPU: g.cfg.CPU,
	}
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
	switch {
	case r.Generator.Drops > 0:
		generator("The kernel dropped %d datagrams on the generator's own sockets.", r.Generator.Drops)
	case r.SendFailed > 0:
		generator("The kernel refused %d datagrams of the generator.", r.SendFailed)
	case r.Unsent > 0:
		generator("The generator did not get to %d datagrams.", r.Unsent)
	case cfg.Rate > 0 && r.Generator.Lag.P99 > lagLimit:
		generator("The generator fell behind its schedule: 1%% of the datagrams left more than %v late.", r.Generator.Lag.P99)
	case cfg.Window > 0 && r.Generator.Busy > maxBusy:
		generator("The generator was busy %.0f%% of the time of a closed loop.", 100*r.Generator.Busy)
	case r.Lost > 0:
		r.Limit, r.LimitReason = LimitServer, fmt.Sprintf("%d datagrams were lost between the generator's sockets.", r.Lost)
	case cfg.Window > 0:
		r.Limit, r.LimitReason = LimitServer, "In a closed loop the slower side limits, and the generator had time left."
	default:
		r.Limit, r.LimitReason = LimitNone, ""
	}
}
