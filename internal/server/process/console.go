package process

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/bans"
	"github.com/ferryrelay/ferry/internal/server/operator/console"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

const consoleRefusals = 500

func (r *localRelay) countMatches(ctx context.Context) (n int, err error) {
	all, err := r.engine.Usage(ctx)
	for _, u := range all {
		n += u.Hosts
	}
	return n, err
}

func (r fleetOperator) summaries(ctx context.Context, relays []string) map[string]operator.Summary {
	return admin.Summaries(ctx, r, relays)
}

// certificateWarning is how long before its end a certificate is a problem, if that is less than a quarter of its
// time. The alert in scripts/deploy has a week.
const certificateWarning = 14 * 24 * time.Hour

// self is what a process says of itself.
type self struct {
	opts  *Options
	since time.Time
	ready *readiness
	url   string // where players' calls are answered; "": they are not
}

// status is what an operator sees of the process. Parts that it lacks are nil.
type status struct {
	self         self
	settings     *settings
	certificates *certificates
	accepting    *accepting
	players      *players
	bans         *bans.Keeper
	history      *history.History
	relay        *localRelay
	api          *apiServer
	store        *redisstore.Stores
	frontEnd     *frontEnd
}

func (s *self) state() string {
	switch s.ready.check() {
	case nil:
		return "ready"
	case errDraining:
		return "draining"
	}
	return "not ready"
}

func (s *self) announcement() placement.APIProcess {
	return placement.APIProcess{
		Name: hostname(), URL: s.url, Version: s.opts.Version, State: s.state(), Up: time.Since(s.since),
	}
}

// nodes returns this process, whose relay has the load, and those of its fleet.
func (s *status) nodes(_ context.Context, load operator.Load) (operator.Nodes, error) {
	st, o := s.relay.stats(), s.self.opts
	n := operator.Node{
		ID: o.Identity.Relay.String(), Role: o.Mode.String(), Region: o.Config.Region,
		Version: o.Version, State: s.self.state(), API: s.self.url, Since: s.self.since,
		Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
	}
	if s.relay != nil {
		now := s.settings.current()
		n.MaxSeats, n.Matches = s.relay.seats(&now.Config), load.Matches
		n.Traffic = operator.Traffic{
			Received: load.DatagramsIn, ReceivedBytes: load.BytesIn, Sent: load.DatagramsOut, SentBytes: load.BytesOut, Dropped: load.Drops,
		}
	}
	for _, addr := range s.relay.addrs() {
		n.UDP = append(n.UDP, addr.String())
	}
	if s.frontEnd == nil {
		return operator.Nodes{Nodes: []operator.Node{n}}, nil
	}
	n.ID, n.Region = hostname(), ""
	all := s.frontEnd.nodes()
	all.Nodes = append([]operator.Node{n}, all.Nodes...)
	return all, nil
}

func (s *status) metrics() metrics.Process {
	p := metrics.Process{AcceptFailed: s.accepting.failed.Load()}
	if s.api != nil {
		s.api.addMetrics(&p)
	}
	if s.relay != nil {
		s.relay.addMetrics(&p)
		now := s.settings.current()
		p.MaxSeats = s.relay.seats(&now.Config)
	}
	return p
}

func (s *status) conditions() (all []console.Condition) {
	add := func(name, state, format string, args ...any) {
		all = append(all, console.Condition{Name: name, State: state, Text: fmt.Sprintf(format, args...)})
	}
	switch err := s.self.ready.check(); err {
	case errNotReady:
		add("readiness", "problem", "not ready: it does not accept requests yet, or stops")
	case errDraining:
		add("readiness", "note", "draining: %d allocations are left", s.relay.stats().Allocations)
	case nil:
		add("readiness", "ok", "ready")
	default:
		add("readiness", "problem", "%v", err)
	}
	if s.relay != nil {
		s.relay.conditions(add)
	}
	if s.store != nil {
		storeConditions(s.store, add)
	}
	now := time.Now()
	states := s.certificates.states(now)
	for _, name := range slices.Sorted(maps.Keys(states)) {
		c := states[name]
		days := int(c.end.Sub(now).Hours() / 24)
		switch f := c.fault; {
		case f.reason != "":
			add("certificate", "problem", "%s: %s, so clients refuse it: %s", name, f.text, f.do)
		case endsSoon(c.start, c.end, now):
			add("certificate", "problem", "%s ends in %d days", name, days)
		default:
			add("certificate", "ok", "%s ends in %d days", name, days)
		}
	}
	return all
}

func storeConditions(stores *redisstore.Stores, add func(name, state, format string, args ...any)) {
	for _, s := range stores.All() {
		name := strings.TrimSpace("store " + s.Regions.Own())
		if err := s.Regions.Err(); err != nil {
			add(name, "problem", "%v: no new matches there", err)
		} else if st := s.Stats(); st.Open {
			add(name, "problem", "the store does not answer: no new matches, while running ones continue")
		} else {
			add(name, "ok", "the store answers; %d calls, %d failed", st.Calls, st.Failed)
		}
	}
}

func (r *localRelay) conditions(add func(name, state, format string, args ...any)) {
	st := r.engine.Stats()
	if n := r.restart.pending(st.Rebuilt); n > 0 {
		add("recovery", "note", "%d of %d allocations of the previous run may still come back", n, r.restart.previous)
	} else if r.restart.previous > 0 {
		add("recovery", "ok", "%d of %d allocations of the previous run came back", st.Rebuilt, r.restart.previous)
	}
	switch {
	case r.opts.Files.Allocations == "":
		add("state file", "note", "none: a restart ends all matches")
	case !st.Private.StateComplete:
		add("state file", "problem", "it cannot be written: after a crash join codes are lost, and allocations that had ended may come back; the log says why, and the relay tries again every 5 s")
	default:
		add("state file", "ok", "matches survive a restart")
	}
	if st.Private.ExpiryPaused {
		add("expiry", "problem", "paused, since so many players fell silent at once that the fault may be on this side")
	}
	if st.Private.WorkersUnderLoad > 0 {
		add("load", "problem", "%d workers are under load and limit each source prefix", st.Private.WorkersUnderLoad)
	}
	for _, l := range r.hostLosses.recent(time.Now()).losses() {
		switch {
		case l.Change != "":
			add(l.Subject, "problem", "in the last minutes, %s; the limit is one in 1000: %s", l.Finding, l.Change)
		case l.Subject == machine.SendQueue:
			add(l.Subject, "ok", "in the last minutes, %s; the limit is one in 1000", l.Finding)
		}
	}
	if r.fastPath == nil {
		return
	}
	switch fast := r.fastPath.Counts(); {
	case fast.On:
		add("fast path", "ok", "on, %s", fast.Mode)
	default:
		add("fast path", "note", "off: %s", fast.OffBecause)
	}
}

// lossesOver is the time over which the console shows losses, and twice that at most.
const lossesOver = time.Minute

type hostLosses struct {
	root fs.FS // nil: that of the machine, with its queues

	mu         sync.Mutex // guards what follows
	from, next hostCounters
	nextAt     time.Time
}

type hostCounters struct {
	udp    machine.UDP
	queues machine.Queues
}

func (c hostCounters) losses() []machine.Line { return append(c.udp.Losses(), c.queues.Losses()...) }

func (l *hostLosses) read() hostCounters {
	if l.root != nil {
		return hostCounters{udp: machine.ReadUDP(l.root)}
	}
	return hostCounters{machine.ReadUDP(os.DirFS("/")), machine.ReadQueues()}
}

// recent returns the counters since one or two times lossesOver before now, or since the first
// call.
func (l *hostLosses) recent(now time.Time) hostCounters {
	c := l.read()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.nextAt.IsZero():
		l.from, l.next, l.nextAt = c, c, now
	case now.Sub(l.nextAt) >= lossesOver:
		l.from, l.next, l.nextAt = l.next, c, now
	}
	return hostCounters{c.udp.Since(l.from.udp), c.queues.Since(l.from.queues)}
}
