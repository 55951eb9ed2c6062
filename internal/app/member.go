package app

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/fleet"
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
		Registry: a.store, Directory: a.store, Node: m.now, OnLost: m.lost, Logger: a.opts.Logger,
	}); err != nil {
		return err
	}
	c := &a.opts.Config
	if m.cluster, err = cluster.NewServer(cluster.Config{
		Addr: c.Cluster.AddrPort, Relay: fleet.NewLocal(relay, m.announcer), Operator: a.operated(), ID: a.opts.Identity.Relay,
		Files: clusterFiles(c), Logger: a.opts.Logger,
	}); err != nil {
		return err
	}
	a.add(part{"cluster", m.cluster.Run, m.cluster.Close})
	a.add(part{"announcer", m.announcer.Run, func() error { return nil }})
	a.member = m
	m.node = fleet.Node{
		Relay: a.opts.Identity.Relay, Boot: a.restart.boot,
		Region: c.Region, Description: c.RegionDescription, QoSAddress: relay.qos(), Endpoints: relay.endpoints,
		Version: a.opts.Version, RecoverFor: c.RecoverFor,
	}
	if m.node.Description == "" {
		m.node.Description = c.Region
	}
	if m.node.Control, err = control(c.ClusterAdvertise, m.cluster.Addr(), relay.endpoints); err != nil {
		return err
	}
	a.opts.Logger.Info("API processes are told to ask", "control", m.node.Control, "relay", a.opts.Identity.Relay.String())
	m.listen()
	a.watch(m.report)
	return nil
}

// listen has the announcer told of what the engine tells, and of what the run
// before left.
func (m *member) listen() {
	for _, kept := range m.app.relay.KeptCodes() {
		m.announcer.HostReturned(kept.Host, kept.Tenant)
		m.announcer.KeepCode(kept.Host, kept.Code)
	}
	m.app.ears.ended = func(e engine.EndEvent) {
		if e.Role == alloc.RoleHost {
			m.announcer.HostEnded(e.ID)
		}
	}
	m.app.ears.returned = func(e engine.ReturnEvent) { m.announcer.HostReturned(e.ID, e.Tenant) }
	m.app.ears.drained = m.announcer.HeartbeatNow
}

// now returns what is announced. The announcer calls it.
func (m *member) now() fleet.Node {
	n, st := m.node, m.app.relay.Stats()
	now := m.app.inForce()
	n.Seats, n.Taken = m.app.seats(&now.Config), st.Seats
	n.Players, n.Matches = st.Bound, m.announcer.Stats().Hosts
	n.Load = m.load.measure()
	n.Draining = m.app.draining.is()
	return n
}

// lost is told of a host that nobody finds any more: another one, which is
// older, has its code.
func (m *member) lost(host proto.AllocationID) {
	m.app.opts.Logger.Warn("the join code of a host leads to another host, since the store had lost it", "host", host)
}
