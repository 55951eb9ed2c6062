package app

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/internal/quota"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
	"github.com/ferryrelay/ferry/proto"
)

// member is what makes a relay one of a fleet: it answers the API processes, and
// tells the store of itself and of what it holds. Its fields are fixed by
// buildMember, but for load, which belongs to the announcer.
type member struct {
	app       *App
	cluster   *cluster.Server
	announcer *fleet.Announcer
	node      fleet.Node // what never changes of it
	load      load
}

// buildMember opens the cluster listener and makes the announcer. The relay ends
// after both: the store hears first that it goes, and then nothing new comes.
func (a *App) buildMember() error {
	relay, err := a.advertised()
	if err != nil {
		return err
	}
	m := &member{app: a}
	if m.announcer, err = fleet.NewAnnouncer(fleet.AnnouncerConfig{
		Registry: a.store, Directory: a.store, Node: m.announcement, OnLost: m.onHostLost, Logger: a.opts.Logger,
	}); err != nil {
		return err
	}
	c := &a.opts.Config
	if m.cluster, err = cluster.NewServer(cluster.Config{
		Addr: c.Cluster.AddrPort, Relay: fleet.NewLocal(relay, m.announcer), Operator: a.clusterOperator(), ID: a.opts.Identity.Relay,
		Files: clusterFiles(c), Logger: a.opts.Logger,
	}); err != nil {
		return err
	}
	a.addComponent(component{"cluster", m.cluster.Run, m.cluster.Close})
	a.addComponent(component{"announcer", m.announcer.Run, func() error { return nil }})
	a.member = m
	m.node = fleet.Node{
		Relay: a.opts.Identity.Relay, Boot: a.restart.boot,
		Region: c.Region, Description: c.RegionDescription, QoSAddress: relay.qos(), Endpoints: relay.endpoints,
		Version: a.opts.Version, RecoverFor: c.RecoverFor,
	}
	if m.node.Description == "" {
		m.node.Description = c.Region
	}
	if m.node.Control, err = controlAddress(c.ClusterAdvertise, m.cluster.Addr(), relay.endpoints); err != nil {
		return err
	}
	a.opts.Logger.Info("API processes are told to ask", "control", m.node.Control, "relay", a.opts.Identity.Relay.String())
	m.observe()
	a.addBackground(m.reportUsage)
	return nil
}

// listen has the announcer told of what the engine tells, and of what the run
// before left.
func (m *member) observe() {
	for _, kept := range m.app.relay.KeptCodes() {
		m.announcer.HostReturned(kept.Host, kept.Tenant)
		m.announcer.KeepCode(kept.Host, kept.Code)
	}
	m.app.observers.ended = func(e engine.EndEvent) {
		if e.Role == alloc.RoleHost {
			m.announcer.HostEnded(e.ID)
		}
	}
	m.app.observers.returned = func(e engine.ReturnEvent) { m.announcer.HostReturned(e.ID, e.Tenant) }
	m.app.observers.drained = m.announcer.HeartbeatNow
}

// announcement returns what is announced. The announcer calls it.
func (m *member) announcement() fleet.Node {
	n, st := m.node, m.app.relay.Stats()
	now := m.app.current()
	n.Seats, n.Taken = m.app.seats(&now.Config), st.Seats
	n.Players, n.Matches = st.Bound, m.announcer.Stats().Hosts
	n.Load = m.load.measure()
	n.Draining = m.app.draining.is()
	return n
}

// lost is told of a host that nobody finds any more: another one, which is
// older, has its code.
func (m *member) onHostLost(host proto.AllocationID) {
	m.app.opts.Logger.Warn("the join code of a host leads to another host, since the store had lost it", "host", host)
}

// operated is this process's relay as an operator reaches it through the cluster.
type clusterOperator struct {
	app   *App
	pages http.Handler // what it shows
}

var _ cluster.Operator = clusterOperator{}

func (a *App) clusterOperator() clusterOperator {
	return clusterOperator{a, admin.RelayPages(a.relay, a.since)}
}

// Page shows what the admin pages of this process show of its relay.
func (o clusterOperator) Page(ctx context.Context, target string) (cluster.Page, error) {
	return cluster.Page(admin.RenderPage(ctx, o.pages, target, cluster.MaxPage)), nil
}

// Drain is App.Drain. What it does not say is as the settings say.
func (o clusterOperator) Drain(ctx context.Context, d cluster.Drain) (cluster.DrainState, error) {
	cfg := o.app.drainDefaults()
	if d.Deadline >= 0 {
		cfg.Deadline = d.Deadline
	}
	if d.Threshold >= 0 {
		cfg.Threshold = d.Threshold
	}
	return o.state(o.app.Drain(ctx, cfg))
}

// Undrain is App.Undrain.
func (o clusterOperator) Undrain(ctx context.Context) (cluster.DrainState, error) {
	err := o.app.Undrain(ctx)
	if errors.Is(err, admin.ErrFinal) {
		err = cluster.ErrFinal
	}
	return o.state(err)
}

func (o clusterOperator) state(err error) (cluster.DrainState, error) {
	if err != nil {
		return cluster.DrainState{}, err
	}
	s := o.app.DrainState()
	return cluster.DrainState{
		Draining: s.Draining, Final: s.Final, Deadline: s.Deadline, Threshold: s.Threshold, Allocations: s.Allocations,
	}, nil
}

// Kick removes a player from its match.
func (o clusterOperator) Kick(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	there, err = o.change(ctx, id, o.app.relay.Kick)
	if errors.Is(err, engine.ErrKickHost) {
		err = cluster.ErrHost
	}
	return there, err
}

// Close ends an allocation.
func (o clusterOperator) Close(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return o.change(ctx, id, o.app.relay.End)
}

// change does something to an allocation, and reports whether it was there. Soon
// after a restart the engine takes any id, which it then keeps from coming back.
func (o clusterOperator) change(ctx context.Context, id proto.AllocationID, do func(context.Context, proto.AllocationID) error) (there bool, err error) {
	_, missing := o.app.relay.Describe(ctx, id)
	return missing == nil, do(ctx, id)
}

// load measures how busy the busiest thread of the process is: a worker that
// has something to do keeps its own. Its one caller owns it.
type load struct {
	at    time.Time
	spent map[string]time.Duration // on a processor, by thread
}

// threadsDir has a directory for each thread, on Linux.
const threadsDir = "/proc/self/task"

// measure returns the part of a processor that the busiest thread has had since
// the last call, 0 to 1; 0 at first, and where the system does not tell.
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

// onProcessor returns how long a thread has run: the first number of its
// schedstat, in nanoseconds.
func threadTime(thread string) (time.Duration, bool) {
	text, err := os.ReadFile(filepath.Join(threadsDir, thread, "schedstat"))
	if err != nil {
		return 0, false // It has ended meanwhile.
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err == nil
}

const (
	// leaseEvery is the time between two reports of a relay about what its projects
	// use: by as much a quota can be exceeded.
	leaseEvery = 2 * time.Second
	// leaseFor is how long a report counts, and so what a dead relay takes with it.
	leaseFor = 10 * time.Second
)

// The scopes of leases: what a project uses, of each thing that has a limit.
const (
	scopeAllocations = "allocations:"
	scopePlayers     = "players:"
	scopeBytes       = "bytes:" // per second
)

// leases tell what a project uses in a fleet: the sum of what its relays report.
type leases struct {
	store *redisstore.Store // set before anybody asks
}

// usage is for quota.Config. Its error means that nobody can say.
func (l *leases) usage(ctx context.Context, project string) (u quota.Usage, err error) {
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

// report tells the store what each project uses of the relay, until ctx ends. Who
// came back after a restart is in it.
func (m *member) reportUsage(ctx context.Context) {
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	holder := m.node.Relay.String()
	var told map[string]int64
	var relayed bandwidth
	for {
		select {
		case <-ctx.Done():
			return // What was told ends by itself, unless the next run is quicker.
		case <-ticker.C:
		}
		all, err := m.app.relay.Usage(ctx)
		if err != nil {
			continue // The relay does not run yet, or no more.
		}
		uses, next := changedLeases(told, all, relayed.measure(all, time.Now()))
		if len(uses) > 0 && m.app.store.Leases(ctx, holder, leaseFor, uses) != nil {
			continue // The store is away, of which others complain.
		}
		told = next
	}
}

// changed returns what is used now by scope, and with it the scopes that were
// told of and are used no more.
func changedLeases(told map[string]int64, all []engine.Usage, perSecond map[string]int64) (uses []redisstore.Use, next map[string]int64) {
	next = make(map[string]int64)
	for i := range all {
		if project := all[i].Name.Project; project != "" && all[i].Allocations > 0 {
			next[scopeAllocations+project] += int64(all[i].Allocations)
			next[scopePlayers+project] += int64(all[i].Players)
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
	for scope := range told {
		if _, still := next[scope]; !still {
			uses = append(uses, redisstore.Use{Scope: scope})
		}
	}
	return uses, next
}
