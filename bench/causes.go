package bench

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// Cause is why a run did not deliver all that was offered, or does not describe the
// server. A run may have several.
type Cause struct {
	Limit  string `json:"limit"`  // the side: "server", "generator", "machine" or "none"
	Reason string `json:"reason"` // a sentence with the evidence
}

// The sides that limit or disturb a run.
const (
	limitNone      = "none"      // no side: the run was interrupted, or no rate of a search failed
	limitServer    = "server"    // it lost datagrams, or was the slower side of a closed loop
	limitGenerator = "generator" // it fell behind, or its own socket overflowed
	limitMachine   = "machine"   // the hypervisor or other processes took processor time
)

// CausedBy reports whether one of the causes lies with a side.
func (r *Result) CausedBy(side string) bool { return r.Reasons(side) != "" }

// InvalidReason returns why the run is not valid.
func (r *Result) InvalidReason() string {
	stopped := ""
	if r.Interrupted {
		stopped = r.Reasons(limitNone)
	}
	return strings.Join(strings.Fields(stopped+" "+r.Reasons(limitGenerator)+" "+r.Reasons(limitMachine)), " ")
}

// Reasons returns the sentences of the causes that lie with a side.
func (r *Result) Reasons(side string) string {
	var all []string
	for _, c := range r.Causes {
		if c.Limit == side {
			all = append(all, c.Reason)
		}
	}
	return strings.Join(all, " ")
}

// Above these limits the generator was the limit of a run.
const (
	// maxLag is how late 99 % of the datagrams may leave in a run without ticks.
	maxLag = time.Millisecond
	// maxCallLag is how late 99 % of the sessions and calls of the API may begin, which goroutines make.
	maxCallLag = 10 * time.Millisecond
	// maxBusy is the share of busy rounds above which a closed loop was limited
	// by the generator.
	maxBusy = 0.97
	// maxSteal is the share of processor time that the hypervisor may take.
	maxSteal = 0.01
	// maxOthers is the share that processes other than generator and server may take.
	maxOthers = 0.05
)

// lagLimit is how late 1 % of the datagrams may leave in a run that is valid.
func (cfg *Config) lagLimit(flows int) time.Duration {
	if cfg.Shape != shapeStar || cfg.Rate == 0 {
		return maxLag
	}
	// What a match sends in a tick is due at the same time, and cannot be sent at the same time.
	return max(maxLag, time.Duration(float64(flows)/cfg.Rate*1e9/2))
}

func (r *Result) addCause(limit string, holds bool, format string, args ...any) {
	if holds {
		r.Causes = append(r.Causes, Cause{limit, fmt.Sprintf(format, args...)})
	}
}

func (r *Result) findCauses(cfg *Config) {
	lag := r.Generator.Lag.most()
	r.addCause(limitGenerator, r.Generator.Drops > 0, "The kernel dropped %d datagrams on the generator's own sockets.", r.Generator.Drops)
	r.addCause(limitGenerator, r.SendFailed > 0, "The kernel refused %d datagrams of the generator.", r.SendFailed)
	conns := cmp.Or(r.Connections, &Connections{})
	r.addCause(limitGenerator, conns.Backlogged > 0,
		"The generator did not read in time from its connections: %d times a receive buffer was nearly full.", conns.Backlogged)
	r.addCause(limitGenerator, r.Unsent > 0, "The generator did not get to %d datagrams.", r.Unsent)
	r.addCause(limitGenerator, cfg.Rate > 0 && lag > cfg.lagLimit(r.Load.Flows),
		"The generator fell behind its schedule: 1%% of the datagrams left more than %s late.", figures.Time.Format(float64(lag)))
	for _, c := range []struct {
		lag   Latency
		limit time.Duration
		what  string
	}{
		{cmp.Or(r.Binds, &Calls{}).Lag, maxLag, "BINDs were sent"},
		{cmp.Or(r.Churn, &Churn{}).Lag, maxCallLag, "sessions began"},
		{cmp.Or(r.Replaced, &replacement{}).Lag, maxCallLag, "calls for new matches began"},
	} {
		r.addCause(limitGenerator, c.lag.most() > c.limit, "The generator fell behind: 1%% of the %s more than %s late.",
			c.what, figures.Time.Format(float64(c.lag.most())))
	}
	r.addCause(limitGenerator, cfg.Window > 0 && r.Generator.Busy > maxBusy, "The generator was busy %.0f%% of the time of a closed loop.",
		100*r.Generator.Busy)
	r.addCause(limitMachine, r.System.share(r.System.Steal) > maxSteal, "The hypervisor took %.1f%% of the processors' time.",
		100*r.System.share(r.System.Steal))
	if cpu := r.System.Shared; cpu != nil {
		r.addCause(limitMachine, true, "Generator and server share processor %d: bind each to one of its own.", *cpu)
	}
	others := r.System.share(r.System.User + r.System.Kernel - r.Generator.Process.Run - r.Server.Run)
	r.addCause(limitMachine, r.Server.IsServer() && r.Measured >= time.Second && others > maxOthers,
		"Processes other than generator and server took %.0f%% of the processors' time.", 100*others)
	r.Valid = len(r.Causes) == 0
	r.addServerCauses()
}

func (r *Result) addServerCauses() {
	lost := r.lostByServer()
	buffers := ""
	if n := r.System.OtherRcvbufErrors; n > 0 {
		buffers = fmt.Sprintf("; receive buffers of this machine that are not the generator's dropped %d", n)
	}
	conns := cmp.Or(r.Connections, &Connections{})
	r.addCause(limitServer, conns.Ended > 0, "%d connections were ended by the relay.", conns.Ended)
	r.addCause(limitServer, r.Blocked > 0, "%d datagrams were not sent: the relay had ended their connection or did not read from it; "+
		"its receive buffers were full for %s in all.", r.Blocked, figures.Time.Format(float64(conns.WindowClosed)))
	r.addCause(limitServer, lost > 0, "%d datagrams were lost between the generator's sockets%s%s.", lost, buffers, r.Relay.dropText())
	k := r.Keepalives
	r.addCause(limitServer, k.Answered < k.Sent, "%d of %d keep-alives were not answered.", k.Sent-k.Answered, k.Sent)
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{r.Misdelivered, "arrived at another endpoint than intended"},
		{r.Corrupt, "arrived changed, of another length or cut off"},
		{r.Duplicated, "arrived more than once"},
		{r.Reordered, "arrived after a later one of their flow"},
		{r.Late, "arrived so late that they may be duplicates"},
	} {
		r.addCause(limitServer, c.n > 0, "%d datagrams %s.", c.n, c.what)
	}
	r.addCause(limitServer, r.Load.Window > 0 && r.Valid && lost+r.Blocked == 0,
		"In a closed loop the slower side limits, and the generator had time left.")
}

func (r *Result) lostByServer() uint64 { return r.Lost - min(r.Lost, r.Generator.Drops) }

func (r *Result) markInterrupted() {
	r.Interrupted, r.Valid = true, false
	reason := fmt.Sprintf("It was stopped after %s of the %v to measure.", figures.Time.Format(float64(r.Measured)), r.Load.Duration)
	if r.Measured == 0 {
		reason = "It was stopped before anything was measured."
	}
	r.Causes = append([]Cause{{limitNone, reason}}, r.Causes...)
}
