package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// shared is what all workers and control share. The table, the budgets, the
// spoof guard, the grace and what is live of the limits change, each by rules of
// its own; the rest is fixed before Run.
type shared struct {
	rules    rules
	live     atomic.Pointer[live]
	table    *table.Table
	sealer   *alloc.Sealer
	budgets  *budgets
	spoof    spoofGuard
	faults   faults
	qosGates qosGates
	grace    *grace
	earlier  *earlier // what was, before a restart
	names    names    // of tenants that come back
	probe    prober
	sources  *sources
	clock    func() int64 // milliseconds since some time before the start
}

// recovering reports whether now is within the recovery window, in which
// allocations of an earlier run of the process may come back.
func (r *shared) recovering(now int64) bool { return now < r.rules.recoverUntil }

// relay forwards a RELAY: the endpoint must be bound to From, and From be
// linked to To. The datagram leaves as it came.
func (w *worker) relay(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseRelay(pkt)
	if err != nil {
		return DropSize
	}
	if len(m.Payload) > w.shared.rules.maxContent {
		return DropOversize
	}
	var sender, peer table.Entry
	if !w.shared.table.Find(from, &sender) || sender.ID != m.From {
		return w.mismatch(now, from, m.From)
	}
	own := w.noteHeard(&sender, now)
	if !w.shared.table.FindPeer(&sender, &m.To, &peer) {
		return w.stranger(now, &sender, m.To)
	}
	if peer.Endpoint.IsZero() {
		return DropPeerUnbound
	}
	if len(pkt) > w.shared.rules.messages.safe[peer.Endpoint.Kind()] && w.reportLarge(now, &sender, &peer, len(pkt)) {
		return DropReceiverSize
	}
	theirs := w.shared.table.Activity(peer.Handle)
	if !own.Meter(w.shared.live.Load().quota(sender.Role), len(pkt), now) {
		return DropRate
	}
	if !theirs.Spend(len(pkt)) {
		return DropUnproven
	}
	t := tick(now)
	table.Relayed(sender.Role, own, theirs, t)
	theirs.Active(t)
	w.traffic.add(own.Tally(), len(pkt))
	w.out.add(peer.Endpoint, pkt)
	return OutRelayed
}

// noteHeard notes that the owner of e sent a message that only it should send.
func (w *worker) noteHeard(e *table.Entry, now int64) *table.Activity {
	a := w.shared.table.Activity(e.Handle)
	a.Heard(tick(now))
	a.Prove()
	return a
}

// ping echoes a PING to the endpoint that is bound to its id.
func (w *worker) ping(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParsePing(pkt)
	if err != nil {
		return DropSize
	}
	var sender table.Entry
	if !w.shared.table.Find(from, &sender) || sender.ID != m.ID {
		return w.mismatch(now, from, m.ID)
	}
	w.noteHeard(&sender, now)
	w.out.add(from, pkt)
	return OutPong
}

// live are the limits that may change while the relay runs. They are replaced
// as a whole; a worker loads them for each RELAY.
type live struct {
	joiner, host table.Quota
	unproven     uint32 // bytes
}

func (l Limits) live(unlimited bool) *live {
	l = l.withDefaults(unlimited)
	return &live{
		joiner:   table.NewQuota(l.JoinerDatagrams, l.JoinerBytes),
		host:     table.NewQuota(l.HostDatagrams, l.HostBytes),
		unproven: uint32(l.UnprovenBytes),
	}
}

// quota is what an allocation of that role may relay.
func (l *live) quota(role table.Role) table.Quota {
	if role == table.RoleHost {
		return l.host
	}
	return l.joiner
}

// SetLimits changes [Config].Limits for all allocations from the next datagram
// on. What may go to an unproven endpoint counts from its next BIND. It may be
// called at any time.
func (s *Server) SetLimits(l Limits) { s.shared.live.Store(l.live(s.cfg.Unlimited)) }
