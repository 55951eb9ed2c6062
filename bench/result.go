package bench

import (
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// ResultVersion is the version of the JSON form of [Result]. It grows when a
// member changes its meaning, not when one is added.
const ResultVersion = 2

// Result is what one run measured. It marshals to JSON, where the members of embedded structures
// are its own. Unless a field says otherwise, it counts datagrams that were due in the measured
// interval.
type Result struct {
	Version int `json:"version"` // ResultVersion
	Label
	Started time.Time `json:"started"` // when the measured interval began, UTC
	Machine Machine   `json:"machine"`
	Dialect string    `json:"dialect"` // Dialect.Name: "ferry", "swap", ...
	// Setup is the cost of making all endpoints ready: Duration, and the server's memory before and after
	// it (RSSBefore, RSSAfter).
	Setup setup `json:"setup"`
	Load  Load  `json:"load"`

	Offered      uint64 `json:"offered"`      // due by the schedule; closed loop: same as Sent
	Sent         uint64 `json:"sent"`         // taken by the kernel, or, over TCP, waiting for room in its buffer
	SendFailed   uint64 `json:"sendFailed"`   // refused by the kernel
	Blocked      uint64 `json:"blocked"`      // due, but not sent: the relay had ended the connection, or did not read from it
	Unsent       uint64 `json:"unsent"`       // due, but not sent before the end of the run
	Delivered    uint64 `json:"delivered"`    // arrived, each once
	Lost         uint64 `json:"lost"`         // Sent - Delivered
	Duplicated   uint64 `json:"duplicated"`   // arrived once more
	Reordered    uint64 `json:"reordered"`    // arrived after a later one of its flow (RFC 4737), part of Delivered
	Late         uint64 `json:"late"`         // so far behind that they cannot be distinguished from duplicates; not in Delivered
	Corrupt      uint64 `json:"corrupt"`      // changed, of another length or cut off
	Misdelivered uint64 `json:"misdelivered"` // arrived at another endpoint than intended

	// Measured is less than Load.Duration if the run was interrupted.
	Measured      time.Duration `json:"measuredNs"`
	OfferedRate   float64       `json:"offeredRate"`   // datagrams/s
	DeliveredRate float64       `json:"deliveredRate"` // datagrams/s
	LossRatio     float64       `json:"lossRatio"`     // of Offered, the share that was not delivered, 0 to 1
	// of the largest datagram that the relay received: UDP payload, or message of a WebSocket
	WireBytes int      `json:"wireBytes"`
	Gaps      *Gaps    `json:"gaps,omitempty"`  // nil: nothing was due
	Latency   Latency  `json:"latency"`         // from the intended send time to the arrival
	Seconds   []Second `json:"seconds"`         // the whole run by the clock, warm-up and drain included
	Relay     *Relay   `json:"relay,omitempty"` // nil without Config.Metrics
	// Server is the server's use of the machine over the measured interval, or the silence of the shape
	// idle: PerDatagram (ns of processor time), Run, User, System, Wait, RSS, Threads. Zero without
	// Config.ServerPID.
	Server    process   `json:"server"`
	Generator Generator `json:"generator"`
	// Connections is about those of a transport over TCP, else nil; whole run.
	Connections *Connections `json:"connections,omitempty"`
	// System has counters of the whole machine: the processors' times, and drops of UDP sockets.
	System system `json:"system"`

	Binds      *Calls     `json:"binds,omitempty"` // with Load.BindRate
	Keepalives keepalives `json:"keepaliveStats"`  // Sent, Answered, Latency

	Churn *Churn `json:"churn,omitempty"` // shape churn only
	// Recovery is about endpoints that were bound again: Endpoints, Bound, Latency, Duration. Nil: none.
	Recovery *recovery `json:"recovery,omitempty"`
	// Replaced counts matches that came and went, with Load.ReplaceRate, and has the latency of each step.
	Replaced *replacement `json:"replaced,omitempty"`
	Search   *Search      `json:"search,omitempty"` // runs of FindMax only

	// Errors counts unexpected packets and other failures by name; whole run.
	Errors map[string]uint64 `json:"errors,omitempty"`

	Interrupted bool `json:"interrupted,omitempty"` // ended early: everything is about the part before
	// Valid is true if the figures describe the server: the run was not interrupted, and
	// no cause lies with the generator or the machine.
	Valid  bool    `json:"valid"`
	Causes []Cause `json:"causes,omitempty"` // of what was not sent, not delivered or not the server's delay
}

// Machine describes the computer of the generator. Absolute figures of runs
// with different IDs must not be compared.
type Machine struct {
	ID       string `json:"id"`       // hash of host name, CPU model, cores and kernel
	CPU      string `json:"cpu"`      // model name
	Cores    int    `json:"cores"`    // logical processors online
	Kernel   string `json:"kernel"`   // release
	OS       string `json:"os"`       // GOOS/GOARCH
	Go       string `json:"go"`       // version of the generator's toolchain
	Governor string `json:"governor"` // cpufreq governor, empty if there is none
}

// setup has the cost of making all endpoints ready.
type setup struct {
	Duration  time.Duration `json:"durationNs"`
	RSSBefore uint64        `json:"rssBefore"` // of the server, bytes; 0 without Config.ServerPID
	RSSAfter  uint64        `json:"rssAfter"`
}

// Second is one second by the clock, in which datagrams were due, sent, or arrived.
type Second struct {
	At        int           `json:"at"`        // seconds since the start of the measured interval; negative before it
	Offered   uint64        `json:"offered"`   // due by the schedule in this second
	Sent      uint64        `json:"sent"`      // taken by the kernel
	Delivered uint64        `json:"delivered"` // arrived, each once
	P50       time.Duration `json:"p50Ns"`     // of what arrived in it, as are P99 and Max
	P99       time.Duration `json:"p99Ns"`
	Max       time.Duration `json:"maxNs"`
}

// process is the use of the machine by one process over the measured interval, in the shape idle over
// the silence before it.
type process struct {
	PID int `json:"pid"` // 0: nothing was measured
	// Run is the time on a processor, summed over the threads, exact
	// (/proc/PID/task/*/schedstat). User and System are the kernel's split of
	// it, which may be sampled by the tick.
	Run    time.Duration `json:"runNs"`
	User   time.Duration `json:"userNs"`
	System time.Duration `json:"systemNs"`
	Wait   time.Duration `json:"waitNs"` // runnable, but not on a processor
	Wall   time.Duration `json:"wallNs"` // between the two readings
	// Datagrams arrived at the generator between the two readings, duplicates
	// included; PerDatagram is Run divided by it, in nanoseconds.
	Datagrams   uint64  `json:"datagrams"`
	PerDatagram float64 `json:"perDatagramNs"`

	// NoSocket is true if the process has no socket with the relay's port.
	NoSocket bool `json:"noSocket,omitempty"`

	RSS     uint64 `json:"rss"`     // bytes, at the end
	Threads int    `json:"threads"` // at the end
}

// IsServer reports whether the figures of the process are those of the server.
func (p *process) IsServer() bool { return p.PID != 0 && p.Run > 0 && !p.NoSocket }

// Generator has the measurements of the generator itself.
type Generator struct {
	Process process `json:"process"` // as Result.Server, of this process
	// Busy is the share of the loop's time in rounds that moved a datagram, 0
	// to 1. The thread spins, so its CPU time says nothing.
	Busy float64 `json:"busy"`
	// Lag is how late each datagram was handed to the kernel, from its intended time.
	Lag Latency `json:"lag"`
	// Drops are those of the generator's own sockets: not the server's loss.
	Drops uint64 `json:"drops"`
}

// system has the counters of the whole machine over the measured interval.
type system struct {
	// Times of all processors together, in the tick's resolution (/proc/stat).
	User    time.Duration `json:"userNs"`
	Kernel  time.Duration `json:"kernelNs"`
	SoftIRQ time.Duration `json:"softirqNs"`
	Steal   time.Duration `json:"stealNs"` // a run with more than 1 % of the total is of little value
	Idle    time.Duration `json:"idleNs"`
	// Drops of all UDP sockets of this machine over the whole run (/proc/net/snmp).
	RcvbufErrors uint64 `json:"rcvbufErrors"`
	SndbufErrors uint64 `json:"sndbufErrors"`
	InErrors     uint64 `json:"inErrors"`
	NoPorts      uint64 `json:"noPorts"`
	// OtherRcvbufErrors are those that were not dropped on the generator's sockets: a
	// relay on this machine drops there what it does not receive in time.
	OtherRcvbufErrors uint64 `json:"otherRcvbufErrors"`
	// Shared is the processor that generator and server have to share, if each has only that one.
	Shared *uint64 `json:"sharedProcessor,omitempty"`
}

func (s *system) share(d time.Duration) float64 {
	return float64(d) / float64(max(s.User+s.Kernel+s.SoftIRQ+s.Steal+s.Idle, 1))
}

// Churn counts the sessions of the whole run, from allocate to leave.
type Churn struct {
	Started  uint64  `json:"started"`
	Finished uint64  `json:"finished"` // all steps succeeded
	Failed   uint64  `json:"failed"`
	Skipped  uint64  `json:"skipped"` // due, but too many were running
	Rate     float64 `json:"rate"`    // finished per second, in as long a time as they began, from the first end on
	Lag      Latency `json:"lag"`     // of the generator: from when a session was due until it began
	// Steps have Name, Failed and Latency of each step in its order: "allocate", "joincode",
	// "join", "bind", "connect", "play", "leave".
	Steps []step `json:"steps"`
}

// replacement counts matches that fell silent and new ones in their place. An end is that
// of the allocation of an endpoint, which the relay reports to it by ERROR 1.
type replacement struct {
	Rate       float64 `json:"rate"`             // matches/s that were due
	Offered    uint64  `json:"offered"`          // matches for which the API was asked
	Refused    uint64  `json:"refused"`          // of those, by the API
	Reason     string  `json:"reason,omitempty"` // of the first of those
	NoEndpoint uint64  `json:"noEndpoint"`       // of those, all spare endpoints had allocations
	Failed     uint64  `json:"failed"`           // of those, not bound and connected in time
	Arrived    uint64  `json:"arrived"`          // of those, live; as many fell silent
	Ended      uint64  `json:"ended"`            // endpoints that fell silent and were reported as ended
	NotEnded   uint64  `json:"notEnded"`         // endpoints that fell silent and were not, within 60 s or the drain
	EndedEarly uint64  `json:"endedEarly"`       // endpoints that were reported as ended and were not silent

	Lag     Latency `json:"lag"`     // of the generator: from when a call of the API was due until it began
	Reserve Latency `json:"reserve"` // all calls of the API for a match
	Bind    Latency `json:"bind"`    // from the first BIND of an endpoint to BIND_RECEIVED
	Ready   Latency `json:"ready"`   // from when a match was due until all of it was connected
	End     Latency `json:"end"`     // from when an endpoint was last active until ERROR 1
}

// step is one step of a session.
type step struct {
	Name    string  `json:"name"`
	Failed  uint64  `json:"failed"`
	Latency Latency `json:"latency"`
}

func newResult(cfg *Config, d benchrig.Dialect, p *benchrig.Plan) Result {
	r := Result{
		Version: ResultVersion, Label: cfg.Label, Load: cfg.Load,
		Started: time.Now().UTC().Truncate(time.Millisecond), Machine: thisMachine(), Dialect: d.Name(),
	}
	r.Load.Endpoints, r.Load.Flows = p.Len()-p.Spare*(1+p.Players), cfg.liveFlows(p)
	return r
}

func (g *generator) collect(r *Result, o *observer) {
	end := max(g.times.end, g.times.measure)
	g.recorder.report(r, end)
	r.Binds, r.Keepalives = g.binds.report(r.Measured), g.keep.report()
	r.Errors, r.Recovery = g.recorder.errors, g.rebind.report()
	if c := g.rig.Connections(); c != nil {
		n := Connections(c.Minus(g.reconnector.before))
		r.Connections = &n
	}
	if (g.cfg.Rate > 0 || g.cfg.Window > 0) && end > g.times.measure {
		r.Gaps = g.recorder.reportGaps(end)
	}
	for i := range g.flows {
		f := &g.flows[i]
		r.WireBytes = max(r.WireBytes, len(f.prefix)+g.cfg.Payload+g.rig.Overhead(int(f.from)))
	}
	r.Seconds = g.recorder.allSeconds()
	g.usage(o, r)
}

func (g *generator) usage(o *observer, r *Result) {
	drops := g.recorder.drops()
	r.Generator.Drops = drops - g.recorder.dropped
	if r.Measured > 0 {
		r.Generator.Busy = float64(g.recorder.count.busy) / float64(r.Measured)
	}
	last := len(o.readings) - 1
	if last < 1 {
		return
	}
	a, b := &o.readings[0], &o.readings[last]
	r.Generator.Process = processUse(o.generatorPID, a.self, b.self, b.arrived-a.arrived)
	if o.serverPID != 0 {
		r.Server = processUse(o.serverPID, a.server, b.server, b.arrived-a.arrived)
	}
	r.System = systemUse(a.system, b.system, o.before, readSystem())
	if cpu, bound := boundTo(a.self, b.self); bound && r.Server.PID != 0 {
		if other, bound := boundTo(a.server, b.server); bound && other == cpu {
			r.System.Shared = &cpu
		}
	}
	own := drops - g.recorder.droppedBefore
	r.System.OtherRcvbufErrors = r.System.RcvbufErrors - min(own, r.System.RcvbufErrors)
}

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func missing(delivered, offered uint64) uint64 { return offered - min(delivered, offered) }

func lossRatio(delivered, offered uint64) float64 { return ratio(missing(delivered, offered), offered) }
