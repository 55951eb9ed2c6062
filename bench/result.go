package bench

import "time"

// ResultVersion is the version of the JSON form of [Result]. It grows when a
// member changes its meaning, not when one is added.
const ResultVersion = 1

// Result is what one run measured. It marshals to JSON; durations are integers
// in nanoseconds. Unless a field says otherwise, it counts datagrams of the
// measured interval: those whose intended send time lies in it, warm-up and
// drain excluded.
type Result struct {
	Version int       `json:"version"` // ResultVersion
	Name    string    `json:"name"`    // Config.Name: the label of this run in tables and plots
	Started time.Time `json:"started"` // when the measured interval began, UTC
	Command []string  `json:"command,omitempty"`
	Commit  string    `json:"commit,omitempty"`
	Machine Machine   `json:"machine"`
	Dialect string    `json:"dialect"` // Dialect.Name: "ferry", "swap", ...
	Limits  string    `json:"limits"`  // the profile of limits that the server was said to have
	Setup   Setup     `json:"setup"`
	Load    Load      `json:"load"`

	Offered      uint64 `json:"offered"`      // due by the schedule; closed loop: same as Sent
	Sent         uint64 `json:"sent"`         // taken by the kernel
	SendFailed   uint64 `json:"sendFailed"`   // refused by the kernel
	Unsent       uint64 `json:"unsent"`       // due, but the run ended before the generator got to them
	Delivered    uint64 `json:"delivered"`    // arrived, each once
	Lost         uint64 `json:"lost"`         // Sent - Delivered
	Duplicated   uint64 `json:"duplicated"`   // arrived once more
	Reordered    uint64 `json:"reordered"`    // arrived after a later one of its flow (RFC 4737), part of Delivered
	Late         uint64 `json:"late"`         // so far behind that they cannot be told from duplicates; not in Delivered
	Corrupt      uint64 `json:"corrupt"`      // wrong length or cut off
	Misdelivered uint64 `json:"misdelivered"` // arrived at another endpoint than intended

	// Measured is the length of the measured interval: Load.Duration, or what
	// was seen of it.
	Measured      time.Duration `json:"measuredNs"`
	OfferedRate   float64       `json:"offeredRate"`   // datagrams/s
	DeliveredRate float64       `json:"deliveredRate"` // datagrams/s
	LossRatio     float64       `json:"lossRatio"`     // Lost / Sent, 0 to 1
	WireBytes     int           `json:"wireBytes"`     // UDP payload of the largest datagram that the relay received

	Latency   Latency   `json:"latency"` // from the intended send time to the arrival
	Seconds   []Second  `json:"seconds"` // the whole run by the clock, warm-up and drain included
	Server    Process   `json:"server"`  // zero without Config.ServerPID
	Generator Generator `json:"generator"`
	System    System    `json:"system"`

	BindsSent    uint64 `json:"bindsSent"`    // with Config.BindRate, whole run
	BindsAnswers uint64 `json:"bindsAnswers"` // whole run
	Keepalives   uint64 `json:"keepalives"`   // sent, whole run

	Churn   *Churn   `json:"churn,omitempty"`   // shape churn only
	Netcode *Netcode `json:"netcode,omitempty"` // shape netcode only: datagrams above are its commands and snapshots
	Control *Control `json:"control,omitempty"` // with Config.BindRate or AllocateWorkers
	Search  *Search  `json:"search,omitempty"`  // runs of FindMax only

	// Errors counts what arrived and was neither a datagram of ours nor an
	// expected answer, and what went wrong, by name; whole run.
	Errors map[string]uint64 `json:"errors,omitempty"`

	Interrupted bool   `json:"interrupted,omitempty"` // ended before its time: everything is about the part that was seen
	Limit       Limit  `json:"limit"`                 // who could not keep up
	LimitReason string `json:"limitReason"`           // one sentence, empty for LimitNone
}

// Limit says who limited a run.
type Limit string

// The verdicts. A run with LimitGenerator says nothing about the server.
const (
	LimitNone      Limit = "none"      // everything offered was sent and delivered
	LimitServer    Limit = "server"    // datagrams were lost or late on the server's side
	LimitGenerator Limit = "generator" // the generator fell behind, or its own socket overflowed
)

// Machine describes the computer of the generator. Absolute figures of runs
// with different IDs must not be compared.
type Machine struct {
	ID       string `json:"id"`       // hash of host name, CPU model, cores and kernel
	Host     string `json:"host"`     // hash of the host name, 16 hex digits
	CPU      string `json:"cpu"`      // model name
	Cores    int    `json:"cores"`    // logical processors online
	Kernel   string `json:"kernel"`   // release
	OS       string `json:"os"`       // GOOS/GOARCH
	Go       string `json:"go"`       // version of the generator's toolchain
	Governor string `json:"governor"` // cpufreq governor, empty if there is none
	// Mitigations are the lines of /sys/devices/system/cpu/vulnerabilities
	// that name a mitigation.
	Mitigations []string `json:"mitigations,omitempty"`
}

// Load repeats what was asked for.
type Load struct {
	Shape     Shape         `json:"shape"`
	Direction Direction     `json:"direction"`
	Align     Align         `json:"align"`
	Matches   int           `json:"matches"`
	Players   int           `json:"players"` // per match, the host not counted
	Endpoints int           `json:"endpoints"`
	Flows     int           `json:"flows"`
	Sockets   int           `json:"sockets"`            // of the generator
	Rate      float64       `json:"rate"`               // datagrams/s in all, 0 in a closed loop
	Window    int           `json:"window"`             // per flow, 0 in an open loop
	Payload   int           `json:"payload"`            // bytes, without the dialect's header
	Snapshot  int           `json:"snapshot,omitempty"` // bytes, shape netcode; Payload is a command then
	Duration  time.Duration `json:"durationNs"`
	Warmup    time.Duration `json:"warmupNs"`
	Drain     time.Duration `json:"drainNs"`
	Keepalive time.Duration `json:"keepaliveNs"` // negative: never
	Pinned    bool          `json:"pinned"`
	CPU       int           `json:"cpu"` // of the generator's thread, if pinned

	BindRate        float64       `json:"bindRate"`        // BINDs/s
	AllocateRate    float64       `json:"allocateRate"`    // allocations/s, 0: as many as are answered
	AllocateWorkers int           `json:"allocateWorkers"` // calls under way at most, 0: none
	Baseline        time.Duration `json:"baselineNs"`      // first part of Duration without those
	ChurnRate       float64       `json:"churnRate"`       // sessions/s, shape churn
	ChurnPlay       time.Duration `json:"churnPlayNs"`     // that a session plays
}

// Setup is what it took to get all endpoints ready.
type Setup struct {
	Duration  time.Duration `json:"durationNs"`
	Requests  uint64        `json:"requests"`  // calls of an HTTP API
	Handshake uint64        `json:"handshake"` // datagrams sent to bind and connect
	RSSBefore uint64        `json:"rssBefore"` // of the server, bytes; 0 without Config.ServerPID
	RSSAfter  uint64        `json:"rssAfter"`
}

// Latency summarises a distribution of times. All values are 0 without samples.
type Latency struct {
	Samples uint64        `json:"samples"`
	Mean    time.Duration `json:"meanNs"`
	Min     time.Duration `json:"minNs"`
	P50     time.Duration `json:"p50Ns"`
	P90     time.Duration `json:"p90Ns"`
	P99     time.Duration `json:"p99Ns"`
	P999    time.Duration `json:"p999Ns"`
	Max     time.Duration `json:"maxNs"`
	// Series is the distribution for a plot over a scale of nines, rising.
	Series []Quantile `json:"series,omitempty"`
}

// Quantile is a point of a distribution: Percent of the samples are at most Value.
type Quantile struct {
	Percent float64       `json:"percent"` // 0 to 100
	Value   time.Duration `json:"valueNs"`
}

// Second is what happened in one second of the run, by the clock: datagrams
// count where they were due, sent or arrived.
type Second struct {
	At        int           `json:"at"`        // seconds since the start of the measured interval; negative in the warm-up
	Offered   uint64        `json:"offered"`   // due by the schedule in this second
	Sent      uint64        `json:"sent"`      // taken by the kernel
	Delivered uint64        `json:"delivered"` // arrived, each once
	P50       time.Duration `json:"p50Ns"`
	P99       time.Duration `json:"p99Ns"`
	Max       time.Duration `json:"maxNs"`
}

// Process is the use of the machine by one process over the measured interval.
type Process struct {
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

	RSS         uint64 `json:"rss"`         // bytes, at the end
	Threads     int    `json:"threads"`     // at the end
	Voluntary   uint64 `json:"voluntary"`   // context switches: waited
	Involuntary uint64 `json:"involuntary"` // context switches: was preempted
}

// Generator says how the generator itself did.
type Generator struct {
	Process Process `json:"process"`
	// Busy is the share of the loop's time in rounds that moved a datagram, 0
	// to 1. The thread spins, so its CPU time says nothing.
	Busy float64 `json:"busy"`
	// Lag is how late datagrams were handed to the kernel, from the intended
	// time; all of a batch count as its oldest.
	Lag Latency `json:"lag"`
	// Drops are datagrams that the kernel dropped on the generator's own
	// sockets in the measured interval and the drain: they are not the server's loss.
	Drops      uint64  `json:"drops"`
	SendCalls  uint64  `json:"sendCalls"`  // rounds of sendmmsg in the measured interval
	SendBatch  float64 `json:"sendBatch"`  // datagrams per call that sent some
	RecvBatch  float64 `json:"recvBatch"`  // datagrams per call that got some
	ReadBuffer int     `json:"readBuffer"` // granted per socket, bytes
}

// System is what the whole machine did in the measured interval.
type System struct {
	// Times of all processors together, in the tick's resolution (/proc/stat).
	User    time.Duration `json:"userNs"`
	Kernel  time.Duration `json:"kernelNs"`
	SoftIRQ time.Duration `json:"softirqNs"`
	Steal   time.Duration `json:"stealNs"` // above 1 % of the total the run is worth little
	Idle    time.Duration `json:"idleNs"`
	// Drops of all UDP sockets of this machine over the whole run (/proc/net/snmp).
	RcvbufErrors uint64 `json:"rcvbufErrors"`
	SndbufErrors uint64 `json:"sndbufErrors"`
	InErrors     uint64 `json:"inErrors"`
	NoPorts      uint64 `json:"noPorts"`
}

// Netcode is what became of the connections of the shape netcode.
type Netcode struct {
	TickRate float64 `json:"tickRate"` // per second
	Players  int     `json:"players"`  // in all matches
	// Connect is how long a player took from its wish to connect until it was
	// connected.
	Connect Latency `json:"connect"`
	Ended   uint64  `json:"ended"`  // sides of connections that ended, whole run
	Unsaid  uint64  `json:"unsaid"` // messages that were due on such, whole run

	Commands  Stream `json:"commands"`  // players to host
	Snapshots Stream `json:"snapshots"` // host to players

	// Of the whole run, from the first request on: what all drivers sent, with
	// acknowledgements and heartbeats; without the dialect's header.
	Datagrams     uint64 `json:"datagrams"`
	DatagramBytes uint64 `json:"datagramBytes"`
	Resent        uint64 `json:"resent"` // reliable packets sent again
	Late          uint64 `json:"late"`   // messages that came after a newer one, which a game does not see: lost
}

// Stream is one kind of messages of the shape netcode in the measured interval.
type Stream struct {
	Bytes     int     `json:"bytes"`     // of a message
	Sent      uint64  `json:"sent"`      // given to the driver of this side
	Delivered uint64  `json:"delivered"` // given to the game of the other side, each once
	LossRatio float64 `json:"lossRatio"` // 0 to 1
	Latency   Latency `json:"latency"`   // from the intended send time until the game has it
}

// Churn is what became of the sessions of the shape churn. A session is a host
// and a player from allocate to leave, over the whole run.
type Churn struct {
	Started  uint64  `json:"started"`
	Finished uint64  `json:"finished"` // all steps succeeded
	Failed   uint64  `json:"failed"`
	Skipped  uint64  `json:"skipped"` // due, but too many were under way
	Rate     float64 `json:"rate"`    // finished per second
	// Steps are the times of each step in its order: "allocate", "joincode",
	// "join", "bind", "connect", "play", "leave".
	Steps []Step `json:"steps"`
}

// Step is one step of a session.
type Step struct {
	Name    string  `json:"name"`
	Failed  uint64  `json:"failed"`
	Latency Latency `json:"latency"`
}
