package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
	"github.com/ferryrelay/ferry/proto"
)

// member makes a relay a member of a fleet: it answers API processes, and announces the
// relay and its hosts in the store. Its fields are fixed by newMember, except load and
// traffic, which belong to the announcer.
type member struct {
	relay     *localRelay
	store     *redisstore.Store // of its region
	settings  *settings
	log       *slog.Logger
	began     time.Time // when the process did
	cluster   *rpc.Server
	announcer *placement.Announcer
	node      placement.Node // the fields that never change
	load      load
	traffic   traffic
}

// newMember opens the cluster listener and creates the announcer. The summary is that of the console.
func newMember(s *status, summary func() operator.Summary) (_ *member, err error) {
	o, c, r := s.self.opts, &s.self.opts.Config, s.relay
	store := s.store.All()[0]
	m := &member{relay: r, store: store, settings: s.settings, log: o.Logger, began: s.self.since}
	m.node = placement.Node{
		Relay: o.Identity.Relay, Boot: r.restart.boot,
		Region: c.Region, Description: cmp.Or(c.RegionDescription, c.Region),
		QoSAddress: r.engine.Region().QoSAddress, Endpoints: r.engine.Endpoints,
		Version: o.Version, Capabilities: placement.Capabilities(), RecoverFor: c.RecoverFor,
	}
	m.announcer = placement.NewAnnouncer(placement.AnnouncerConfig{
		Registry: store.Registry, Directory: store.Directory, Node: m.announcement, OnLost: m.onHostLost, Logger: o.Logger,
		OnMoveRefused: func(host proto.AllocationID) { endUnreachableHost(r.engine.Server, o.Logger, host) },
	})
	pages := s.relayConfig()
	pages.Summary = summary
	if m.cluster, err = rpc.NewServer(rpc.Config{
		Addr: c.Cluster.AddrPort, Relay: placement.NewLocal(r.engine, m.announcer), Operator: clusterOperator{r, admin.RelayPages(pages)},
		ID: o.Identity.Relay, Files: clusterFiles(c), Logger: o.Logger,
	}); err != nil {
		return nil, bindError("cluster", "tcp", c.Cluster.AddrPort, err)
	}
	if m.node.Control, err = controlAddress(c.ClusterAdvertise, m.cluster.Addr(), r.engine.Endpoints); err != nil {
		return nil, errors.Join(err, m.cluster.Close())
	}
	o.Logger.Info("control address for API processes", "control", m.node.Control, "relay", o.Identity.Relay.String())
	m.restore()
	return m, nil
}

// addTo adds the parts of the member. The relay stops after both, so that it is removed from the store
// first and gets no new hosts.
func (m *member) addTo(g *parts.Group) {
	g.Add(parts.Part{Name: "cluster", Run: m.cluster.Run, Free: m.cluster.Close})
	g.Add(parts.Part{Name: "announcer", Run: m.announcer.Run})
	g.AddTasks(m.reportUsage)
}

func (m *member) restore() {
	for _, kept := range m.relay.engine.Private().KeptCodes() {
		m.announcer.HostReturned(kept.Host, kept.Tenant)
		m.announcer.KeepCode(kept.Host, kept.Code)
	}
}

func (m *member) subscribe(s *events.Stream) {
	s.Reserve.Subscribe(func(e engine.ReserveEvent) {
		if e.Role == alloc.RoleHost {
			m.announcer.HostReserved(e.ID, e.Tenant)
		}
	})
	s.Return.Subscribe(func(e engine.ReserveEvent) {
		if e.Role == alloc.RoleHost {
			m.announcer.HostReturned(e.ID, e.Tenant)
		}
	})
	s.End.Subscribe(func(e engine.EndEvent) {
		if e.Role == alloc.RoleHost && !e.Migration {
			m.announcer.HostEnded(e.ID)
		}
	})
	s.Migrate.Subscribe(func(e engine.MigrateEvent) { m.announcer.HostMigrated(e.Tenant, e.Code, e.Host, e.NewHost) })
	s.MigrationEnd.Subscribe(m.announcer.HostEnded)
	s.Drain.Subscribe(func(events.Drain) { m.announcer.HeartbeatNow() })
}

// announcement returns the node to announce. The announcer calls it.
func (m *member) announcement() placement.Node {
	n, st := m.node, m.relay.engine.Stats()
	now := m.settings.current()
	n.Usage = placement.Usage{
		Seats: m.relay.seats(&now.Config), Taken: st.Seats, Load: m.load.measure(),
		Allocations: st.Allocations, Players: st.Bound, Matches: m.announcer.Stats().Hosts, Links: st.Links,
		Traffic: m.traffic.measure(&st, time.Now()), Up: time.Since(m.began),
	}
	n.Draining = m.relay.drain.isOn()
	return n
}

func (m *member) onHostLost(host proto.AllocationID) {
	m.log.Warn("the join code of a host leads to another host, since the store had lost it", "host", host)
}

type clusterOperator struct {
	relay *localRelay
	pages http.Handler // the pages of the relay
}

var _ rpc.Operator = clusterOperator{}

func (o clusterOperator) Page(ctx context.Context, target string) (operator.Page, error) {
	return admin.RenderPage(ctx, o.pages, target, rpc.MaxPage), nil
}

// Drain is drainer.Drain. Negative values mean those of the settings.
func (o clusterOperator) Drain(ctx context.Context, cfg engine.DrainConfig) (operator.DrainState, error) {
	defaults := o.relay.drain.defaults
	if cfg.Deadline < 0 {
		cfg.Deadline = defaults.Deadline
	}
	if cfg.Threshold < 0 {
		cfg.Threshold = defaults.Threshold
	}
	return o.state(o.relay.drain.Drain(ctx, cfg))
}

func (o clusterOperator) Undrain(ctx context.Context) (operator.DrainState, error) {
	return o.state(o.relay.drain.Undrain(ctx))
}

func (o clusterOperator) state(err error) (operator.DrainState, error) {
	if err != nil {
		return operator.DrainState{}, err
	}
	return o.relay.drain.DrainState(), nil
}

func (o clusterOperator) Kick(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return o.change(ctx, id, o.relay.engine.Kick)
}

func (o clusterOperator) Close(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return o.change(ctx, id, o.relay.engine.End)
}

// change applies do to an allocation, and reports whether it is live. Soon after a restart it may be
// one that then cannot come back.
func (o clusterOperator) change(ctx context.Context, id proto.AllocationID, do func(context.Context, proto.AllocationID) error) (there bool,
	err error) {
	_, missing := o.relay.engine.Describe(ctx, id)
	return missing == nil, do(ctx, id)
}

const trafficOver = time.Second

// traffic measures the rates of a relay. It belongs to its only caller.
type traffic struct {
	at     time.Time
	counts placement.Traffic // in all, at that time
	last   placement.Traffic
}

// measure returns the rates since the call before, or those of the call before if that was a moment
// ago; zero at first.
func (t *traffic) measure(st *engine.Stats, now time.Time) placement.Traffic {
	passed := now.Sub(t.at)
	if passed < trafficOver {
		return t.last
	}
	counts := placement.Traffic{
		Received: float64(st.Received), ReceivedBytes: float64(st.ReceivedBytes), Sent: float64(st.Sent), SentBytes: float64(st.SentBytes),
		Dropped: float64(st.KernelDrops),
	}
	for _, n := range st.Drops {
		counts.Dropped += float64(n)
	}
	if was, seconds := t.counts, passed.Seconds(); !t.at.IsZero() {
		t.last = placement.Traffic{
			Received: (counts.Received - was.Received) / seconds, ReceivedBytes: (counts.ReceivedBytes - was.ReceivedBytes) / seconds,
			Sent: (counts.Sent - was.Sent) / seconds, SentBytes: (counts.SentBytes - was.SentBytes) / seconds,
			Dropped: (counts.Dropped - was.Dropped) / seconds,
		}
	}
	t.at, t.counts = now, counts
	return t.last
}

// load measures the load of the busiest thread of the process, since a busy worker has
// its own. It belongs to its only caller.
type load struct {
	at    time.Time
	spent map[string]time.Duration // CPU time, by thread
}

const threadsDir = "/proc/self/task"

// measure returns the fraction of a processor that the busiest thread used since the last
// call, 0 to 1; 0 at the first call, and on systems without the information.
func (l *load) measure() float64 {
	threads, err := os.ReadDir(threadsDir)
	if err != nil {
		return 0
	}
	now, spent := time.Now(), make(map[string]time.Duration, len(threads))
	passed := now.Sub(l.at)
	var most time.Duration
	for _, t := range threads {
		on, ok := threadTime(t.Name())
		if !ok {
			continue
		}
		spent[t.Name()] = on
		if before, known := l.spent[t.Name()]; known {
			most = max(most, on-before)
		}
	}
	l.at, l.spent = now, spent
	if passed <= 0 {
		return 0
	}
	return min(float64(most)/float64(passed), 1)
}

// threadTime returns the CPU time of a thread: the first number of its schedstat, in
// nanoseconds.
func threadTime(thread string) (time.Duration, bool) {
	text, err := os.ReadFile(filepath.Join(threadsDir, thread, "schedstat"))
	if err != nil {
		return 0, false // The thread has ended.
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err == nil
}

const (
	// leaseEvery is the interval of a relay's reports of the usage of projects. A quota can
	// be exceeded for that long.
	leaseEvery = 2 * time.Second
	// leaseFor is how long a report counts, also after its relay has died.
	leaseFor = 10 * time.Second
)

// The scopes of leases, one for each limit of a project.
const (
	scopeAllocations = "allocations:"
	scopePlayers     = "players:"
	scopeBytes       = "bytes:" // per second
)

type leases struct{ store *redisstore.Stores }

// usage is a quota.Source.
func (l leases) usage(ctx context.Context, project string) (u quota.Usage, err error) {
	allocations, err := l.store.Used(ctx, scopeAllocations+project)
	if err != nil {
		return u, err
	}
	players, err := l.store.Used(ctx, scopePlayers+project)
	if err != nil {
		return u, err
	}
	bytes, err := l.store.Used(ctx, scopeBytes+project)
	return quota.Usage{Allocations: int(allocations), Players: int(players), BytesPerSecond: bytes}, err
}

// reportUsage reports the usage of each project on this relay to the store, until ctx
// ends, after which the last report expires. It includes players that came back after a
// restart.
func (m *member) reportUsage(ctx context.Context) {
	holder := m.node.Relay.String()
	var reported map[string]int64
	var relayed bandwidth
	periodic.Run(ctx, leaseEvery, func() {
		all, err := m.relay.engine.Private().Projects(ctx)
		if err != nil {
			return // The relay does not run.
		}
		uses, next := changedLeases(reported, all, relayed.measure(all, time.Now()))
		if len(uses) > 0 && m.store.Leases.Set(ctx, holder, leaseFor, uses) != nil {
			return // The store is not available, which its client logs.
		}
		reported = next
	})
}

// changedLeases returns the current usage by scope, including zero for scopes that were
// reported before and are not used any more.
func changedLeases(reported map[string]int64, all []privateapi.ProjectUsage, perSecond map[string]int64) (uses []redisstore.Use,
	next map[string]int64) {
	next = make(map[string]int64)
	for i := range all {
		if u := &all[i]; u.Allocations > 0 {
			next[scopeAllocations+u.Project] = int64(u.Allocations)
			next[scopePlayers+u.Project] = int64(u.Players)
		}
	}
	for project, n := range perSecond {
		if n > 0 {
			next[scopeBytes+project] = n
		}
	}
	for scope, n := range next {
		uses = append(uses, redisstore.Use{Scope: scope, Used: n})
	}
	for scope := range reported {
		if _, still := next[scope]; !still {
			uses = append(uses, redisstore.Use{Scope: scope})
		}
	}
	return uses, next
}
