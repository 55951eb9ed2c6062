package engine

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// After a restart each client gets ERROR 3 and binds again, its allocation is rebuilt from its
// connection data, and a link is restored when its host relays over it. The state file makes
// recovery strict: what had ended does not come back, and a captured BIND is rejected.

// uncertainMillis is for how long after a restart without a complete state file a new
// player must wait for a link, so that it does not take the place of an earlier one.
const uncertainMillis = 15_000

// lostPerCall records are looked at per call at the end of the window. What is removed draws on
// the pace of expiry.
const lostPerCall = 256

// recovery belongs to control; workers read previousRun.
type recovery struct {
	previousRun
	records  []statefile.FoundRecord
	returned []bool                          // by record
	ended    map[proto.AllocationID]struct{} // came back and ended since, or may not come back; nil after the window
	missing  int                             // how many have not come back
	next     int                             // next record to remove after the window
	begin    table.Tick                      // of this run
	over     bool
}

// previousRun is immutable.
type previousRun struct {
	left  statefile.PreviousRun // without the records
	index map[proto.AllocationID]int
}

func newRecovery(left statefile.PreviousRun) recovery {
	r := recovery{
		records: left.Records, missing: len(left.Records), returned: make([]bool, len(left.Records)),
		ended: make(map[proto.AllocationID]struct{}),
	}
	r.index = make(map[proto.AllocationID]int, len(left.Records))
	for i := range left.Records {
		r.index[left.Records[i].ID] = i
	}
	left.Records = nil
	r.left = left
	return r
}

func (s private) StateReport() privateapi.StateReport { return s.stateReport }

// Places, if not nil, are those of all records of the file.
func (s *Server) openStateFile(places []statefile.Place) (*statefile.File, statefile.PreviousRun) {
	if s.cfg.Recovery.StateFile == "" {
		return nil, statefile.PreviousRun{}
	}
	file, left, err := statefile.Open(statefile.Config{
		Path: s.cfg.Recovery.StateFile, Capacity: min(2*s.cfg.MaxAllocations, statefile.MaxCapacity),
		Relay: s.shared.sealer.Relay(), Boot: s.shared.sealer.Boot(), OnError: s.cfg.Private.OnStateError,
		Places: places,
	})
	if err != nil {
		if s.cfg.Private.OnStateError != nil {
			s.cfg.Private.OnStateError(err)
		}
		left.Err = err
	}
	s.keepCodes(left.Records)
	s.stateReport = privateapi.StateReport{Opened: err == nil, Allocations: len(left.Records), Complete: left.Complete, Damaged: left.Damaged,
		Closed: left.Closed, Err: left.Err}
	return file, left
}

func (c *control) recover(left statefile.PreviousRun) {
	c.recovery = newRecovery(left)
	c.shared.previousRun = &c.recovery.previousRun
	c.shared.budgets.recoverRate = recoverRate(len(left.Records), c.shared.rules.recoverFor)
	for i := range c.recovery.records {
		c.seats.recoverable += recoverableSeats(&c.recovery.records[i].Record)
	}
	c.recoverMigrations(c.shared.clock())
}

func (e *previousRun) holds(id proto.AllocationID) bool {
	_, ok := e.index[id]
	return ok
}

// Any id may be one of the previous run if the file is not complete.
func (e *previousRun) mayHold(id proto.AllocationID) bool {
	return e.holds(id) || !e.left.Complete
}

func (r *recovery) awaitedRecord(id proto.AllocationID) (i int, ok bool) {
	i, ok = r.index[id]
	return i, ok && !r.over && !r.returned[i]
}

// awaits returns unrecorded for an id without a record.
func (r *recovery) awaits(id proto.AllocationID, unrecorded bool) bool {
	_, awaited := r.awaitedRecord(id)
	return awaited || unrecorded
}

func (c *control) mayRecover(id proto.AllocationID, boot uint64, now int64) bool {
	if boot == c.shared.sealer.Boot() || !c.shared.recovering(now) {
		return false
	}
	if _, ended := c.recovery.ended[id]; ended {
		return false
	}
	return c.recovery.awaits(id, !c.recovery.left.Ended(boot))
}

// mayExist is for what is known by its id only.
func (c *control) mayExist(id proto.AllocationID, now int64) bool {
	if _, ended := c.recovery.ended[id]; ended || !c.shared.recovering(now) {
		return false
	}
	return c.recovery.awaits(id, c.stateFile != nil && !c.recovery.left.Settled)
}

// rebuild returns outcomePending if it has inserted the allocation of an authentic BIND.
func (c *control) rebuild(cmd *command) outcome {
	id := cmd.claims.id
	if !c.mayRecover(id, cmd.claims.boot, cmd.now) {
		return c.refuse(cmd, id, proto.ErrorNotFound)
	}
	var before statefile.FoundRecord
	i, found := c.recovery.awaitedRecord(id)
	if found {
		before = c.recovery.records[i]
		if before.Flags&statefile.Bound != 0 && (cmd.nonce < before.Nonce ||
			cmd.nonce == before.Nonce && c.endpointDigest(cmd.from) != before.Endpoint) {
			return dropNonce
		}
	}
	h, err := c.insert(&cmd.claims, tick(cmd.now))
	if err != nil {
		return dropBusy
	}
	c.shared.table.SetFlags(h, table.Recovered)
	if cmd.claims.names != nil {
		c.projects.setName(cmd.claims.tenant, cmd.claims.names.tenant)
		c.setTag(cmd.claims.id, cmd.claims.names.tag)
	}
	a := c.shared.table.Account(h)
	if found {
		c.recovery.returned[i] = true
		c.recovery.missing--
		c.seats.recoverable -= recoverableSeats(&before.Record)
		a.StateIndex, a.AwaitedLinks = uint32(c.awaitedPlace(i)), before.Links
		c.noteCode(h, before.Code)
		if c.isUnwritten(h) {
			c.stateFile.Remove(c.awaitedPlace(i)) // rewriteSome adds it as one that lives.
		}
		if before.Flags&statefile.Linked != 0 {
			c.shared.table.SetFlags(h, table.EverLinked)
		} else {
			a.LinkBlocked = cmd.claims.role == alloc.RoleJoiner
		}
		if cmd.claims.role == alloc.RoleJoiner && before.Flags&(statefile.Linked|statefile.Left) != 0 {
			a.UnlinkedAt, a.RemovedByHost = tick(cmd.now), before.Flags&statefile.Removed != 0
		}
	} else {
		c.addRecord(h)
	}
	c.rebuilt.Add(1)
	if m := &cmd.claims; c.hooks.OnReturn != nil {
		event := ReserveEvent{ID: m.id, Role: m.role, Tenant: m.tenant, MaxConnections: int(m.maxConnections)}
		if m.names != nil {
			event.Name, event.Player, event.PlayerCut, event.Tag = m.names.tenant, m.names.player, m.names.playerCut, m.names.tag
		}
		if m.role == alloc.RoleJoiner {
			event.Host = m.match
		}
		c.hooks.OnReturn(event)
	}
	return outcomePending
}

func (c *control) insert(m *claims, now table.Tick) (table.Handle, error) {
	h, err := c.shared.table.Reserve(table.Spec{
		ID: m.id, Role: table.Role(m.role), Match: m.match, Player: m.player, Tenant: m.tenant,
		Epoch: m.epoch, MaxConnections: m.maxConnections, CounterIndex: c.projects.indexOf(m.tenant),
	}, now)
	if err != nil {
		return 0, err
	}
	if m.individual {
		c.shared.table.SetFlags(h, table.Individual)
	}
	c.shared.sealer.Retain(m.epoch)
	c.countAdded(h, m.role)
	c.wheel.put(h, c.nextTick(h)+1)
	return h, nil
}

// requestRelink reports false if the link certainly will not be restored.
func (w *worker) requestRelink(now int64, sender *table.Entry, to proto.AllocationID) (outcome, bool) {
	peer, ok := w.shared.table.ByID(to)
	if ok && !peer.Is(table.Recovered) {
		return 0, false
	}
	if !ok || sender.Role == peer.Role || sender.Role == table.RoleJoiner && !w.shared.previousRun.left.Complete {
		return dropRecovering, true
	}
	_, outcome := w.enqueue(known, &command{kind: proto.TypeRelay, from: sender.Endpoint, sender: *sender, peer: to, now: now})
	return outcome, true
}

// commitRelink: a host relays only to joiners that were linked to it. That a joiner was linked is
// known from a complete state file only.
func (c *control) commitRelink(cmd *command, sender *table.Entry) outcome {
	peer, ok := c.shared.table.ByID(cmd.peer)
	if !ok || peer.Role == sender.Role {
		return dropRecovering
	}
	host, joiner := *sender, peer
	if sender.Role == table.RoleJoiner {
		host, joiner = peer, *sender
	}
	if joiner.Link != 0 || !joiner.Is(table.Recovered) || !host.Is(table.Recovered) {
		return dropRecovering
	}
	a, j := c.shared.table.Account(host.Handle), c.shared.table.Account(joiner.Handle)
	if j.Match != host.ID || c.shared.table.Tenant(joiner.Handle) != c.shared.table.Tenant(host.Handle) || j.LinkBlocked ||
		a.Links >= a.MaxConnections {
		return dropRecovering
	}
	if sender.Role == table.RoleJoiner && !(c.recovery.left.Complete && joiner.Is(table.EverLinked)) {
		return dropRecovering
	}
	c.link(&joiner, &host, tick(cmd.now))
	return outRelinked
}

// Free connections of a host may belong to players that have yet to come back.
func (c *control) isSlotReserved(joiner, host *table.Entry, now int64) bool {
	if !c.shared.recovering(now) || !host.Is(table.Recovered) {
		return false
	}
	if joiner.Is(table.Recovered) && !c.shared.table.Account(joiner.Handle).LinkBlocked {
		return false
	}
	if a := c.shared.table.Account(host.Handle); c.recovery.left.Complete {
		return int(a.Links)+int(a.AwaitedLinks) >= int(a.MaxConnections)
	}
	return now < c.shared.rules.recoverUntil-c.shared.rules.recoverFor+uncertainMillis
}

// One side of the link has closed it, so it must not be restored.
func (c *control) blockRelink(sender *table.Entry, peer proto.AllocationID) {
	joiner := *sender
	if sender.Role == table.RoleHost {
		e, ok := c.shared.table.ByID(peer)
		if !ok {
			return
		}
		joiner = e
	} else if peer != c.shared.table.Account(sender.Handle).Match {
		return // Joiners have no links with each other.
	}
	if joiner.Is(table.Recovered) && joiner.Link == 0 {
		c.releaseReservedSlot(&joiner)
		c.shared.table.Account(joiner.Handle).LinkBlocked = true
		c.stateFile.SetLinks(c.recordPlace(joiner.Handle), 0, c.flags(&joiner))
	}
}

// The link of the joiner is restored now or never.
func (c *control) releaseReservedSlot(joiner *table.Entry) {
	a := c.shared.table.Account(joiner.Handle)
	if joiner.Role != table.RoleJoiner || !joiner.Is(table.Recovered) || a.LinkBlocked || joiner.Link != 0 {
		return
	}
	if host, ok := c.shared.table.ByID(a.Match); ok {
		if h := c.shared.table.Account(host.Handle); h.AwaitedLinks > 0 {
			h.AwaitedLinks--
			c.recordHost(&host)
		}
	}
}

// recoverSome removes, after the window, the records of what did not come back, at the pace that
// expireSome leaves.
func (c *control) recoverSome(now int64) {
	r := &c.recovery
	if r.over || c.shared.recovering(now) {
		return
	}
	for range lostPerCall {
		if r.next == len(r.records) {
			r.over, r.records, r.returned, r.ended = true, nil, nil, nil
			c.stateFile.Settle()
			return
		}
		lost, back := &r.records[r.next], r.returned[r.next]
		if !back && c.pace.ends == 0 {
			c.backlog = true
			return
		}
		r.returned[r.next] = true
		r.next++
		if back {
			continue
		}
		c.pace.ends--
		c.stateFile.Remove(c.awaitedPlace(r.next - 1))
		c.migrations.removeCandidate(lost.ID)
		c.seats.recoverable -= recoverableSeats(&lost.Record)
		if c.hooks.OnEnd != nil {
			c.hooks.OnEnd(EndEvent{ID: lost.ID, Role: roleFromFlags(lost.Flags), Tenant: c.tenantName(lost.Tenant), Reason: EndLost})
		}
	}
	c.backlog = true
}

func roleFromFlags(f statefile.Flags) alloc.Role {
	if f&statefile.Host != 0 {
		return alloc.RoleHost
	}
	return alloc.RoleJoiner
}

type slowLog struct {
	changes uint64
	at      int64 // ms
}

const slowLogMillis = 60_000

// Control waited for the disk, and did nothing else meanwhile.
func (c *control) logSlowChanges(now int64) {
	n := c.stateFile.SlowChanges()
	if n == c.slow.changes || now-c.slow.at < slowLogMillis {
		return
	}
	c.shared.log.Warn("state file: changes waited for its disk, and players that bind or connect with them",
		"changes", n-c.slow.changes)
	c.slow = slowLog{n, now}
}

func (c *control) addRecord(h table.Handle) {
	if c.isUnwritten(h) {
		return // rewriteSome adds it.
	}
	e, _ := c.shared.table.At(h)
	a := c.shared.table.Account(h)
	r := statefile.Record{
		ID: e.ID, Tenant: c.shared.table.Tenant(h), Endpoint: c.endpointDigest(e.Endpoint), Code: c.codes[h],
		Nonce: e.Nonce, Links: a.Links + a.AwaitedLinks, Flags: c.flags(&e),
	}
	if r.Flags&statefile.Candidate != 0 {
		r.Endpoint = shortID(c.migrations.places[e.ID])
	}
	a.StateIndex = uint32(c.stateFile.Add(&r))
}

// 0 is no place.
func (c *control) recordPlace(h table.Handle) statefile.Place {
	if c.isUnwritten(h) {
		return 0
	}
	return statefile.Place(c.shared.table.Account(h).StateIndex)
}

func (c *control) recordBind(h table.Handle) {
	e, _ := c.shared.table.At(h)
	c.stateFile.SetBinding(c.recordPlace(h), e.Nonce, c.endpointDigest(e.Endpoint), c.flags(&e))
}

func (c *control) recordLink(joiner, host table.Handle) {
	if e, ok := c.shared.table.At(joiner); ok {
		c.stateFile.SetLinks(c.recordPlace(joiner), 0, c.flags(&e))
	}
	if e, ok := c.shared.table.At(host); ok {
		c.recordHost(&e)
	}
}

func (c *control) recordHost(e *table.Entry) {
	a := c.shared.table.Account(e.Handle)
	c.stateFile.SetLinks(c.recordPlace(e.Handle), a.Links+a.AwaitedLinks, c.flags(e))
}

func (c *control) flags(e *table.Entry) (f statefile.Flags) {
	a := c.shared.table.Account(e.Handle)
	linked := e.Link != 0
	if e.Role == table.RoleHost {
		if f, linked = statefile.Host, e.Is(table.EverLinked); c.migrations.running[e.ID] != nil {
			f |= statefile.Left
		}
	} else if e.Is(table.Recovered) && !a.LinkBlocked {
		linked = true // Its link may still be restored.
	}
	if e.Is(table.EverBound) {
		f |= statefile.Bound
	} else if _, candidate := c.migrations.places[e.ID]; candidate {
		f |= statefile.Candidate
	}
	if linked {
		f |= statefile.Linked
	}
	if e.Role == table.RoleJoiner && a.UnlinkedAt != 0 {
		f |= statefile.Left
	}
	if a.RemovedByHost {
		f |= statefile.Removed
	}
	return f
}

// endpointDigest is the same for every run of this relay, and keyed: an attacker finds no
// collision.
func (c *control) endpointDigest(ep endpoint.Endpoint) uint64 {
	if ep.IsZero() {
		return 0
	}
	ep = ep.Remote()
	relay := c.shared.sealer.Relay()
	x := endpoint.Mix64(ep.Hi ^ binary.LittleEndian.Uint64(relay[:8]))
	x = endpoint.Mix64(x ^ ep.Lo ^ binary.LittleEndian.Uint64(relay[8:]))
	x = endpoint.Mix64(x ^ x>>32 ^ ep.Tail)
	return x ^ x>>31 | 1
}
