package bench

import (
	"time"
)

// Control has the results of load on the control plane, and of forwarding without and
// with that load.
type Control struct {
	// Without is the first part of the measured interval, in which there were
	// neither BINDs nor calls of the API. Nil without Config.Control.Baseline.
	Without *Part `json:"without,omitempty"`
	With    Part  `json:"with"` // the rest of it
	// P99Moved is the p99 of the latency in With minus that in Without, 0 unless
	// both have samples.
	P99Moved time.Duration `json:"p99MovedNs"`

	Binds       *Calls `json:"binds,omitempty"`
	Allocations *Calls `json:"allocations,omitempty"`
}

// Part is of a part of the measured interval, in which its datagrams were due.
type Part struct {
	Duration      time.Duration `json:"durationNs"`
	Offered       uint64        `json:"offered"`
	Sent          uint64        `json:"sent"`
	Delivered     uint64        `json:"delivered"`
	Lost          uint64        `json:"lost"`
	LossRatio     float64       `json:"lossRatio"`
	DeliveredRate float64       `json:"deliveredRate"` // datagrams/s
	Latency       Latency       `json:"latency"`
	// Lag is that of the generator: the share of Latency that is not the server's.
	Lag    Latency `json:"lag"`
	Server Process `json:"server"` // zero without Config.Server.PID
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

// Compares reports whether P99Moved means something. c may be nil.
func (c *Control) Compares() bool {
	return c != nil && c.Without != nil && c.Without.Latency.P99 > 0 && c.Without.Latency.P99 < Never && c.With.Latency.P99 > 0
}

func (c *Calls) setRate(lasted time.Duration) *Calls {
	c.Duration = lasted
	if lasted > 0 {
		c.AnsweredRate = float64(c.Answered) / lasted.Seconds()
	}
	return c
}

func (g *generator) control(o *observer, allocations *Calls) *Control {
	if !g.cfg.loadsControlPlane() {
		return nil
	}
	from, end := g.times.controlled()
	c := &Control{With: g.recorder.part(&g.recorder.portions[1], from, end), Allocations: allocations}
	if g.cfg.Control.BindRate > 0 {
		c.Binds = g.binds.report(from, end)
	}
	c.With.Server = o.serverUse(len(o.readings)-2, len(o.readings)-1)
	if g.cfg.Control.Baseline == 0 {
		return c
	}
	without := g.recorder.part(&g.recorder.portions[0], g.times.measure, from)
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
