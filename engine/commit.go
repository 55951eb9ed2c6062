package engine

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// maxBind is the size of every BIND that a real client sends.
const maxBind = proto.HeaderLen + 1 + 2 + 1 + proto.MaxConnectionData + len(proto.Bind{}.MAC)

// commit executes one command. It repeats the worker's checks of state, which may have changed,
// and does no I/O.
func (c *control) commit(cmd *command) outcome {
	if cmd.kind == proto.TypeBind {
		return c.commitBind(cmd)
	}
	sender, ok := c.shared.table.At(cmd.sender.Handle)
	if !ok || sender.Endpoint != cmd.from {
		return dropStale
	}
	switch cmd.kind {
	case proto.TypeConnectRequest:
		return c.commitConnect(cmd, &sender)
	case proto.TypeDisconnect:
		return c.commitDisconnect(cmd, &sender)
	case proto.TypeRelay:
		return c.commitRelink(cmd, &sender)
	default:
		return c.commitClose(cmd, &sender)
	}
}

func (c *control) commitBind(cmd *command) outcome {
	if o, refused := c.shared.sources.refuses(cmd.from); refused {
		return o
	}
	e, ok := c.shared.table.ByID(cmd.claims.id)
	if c.isHeld(&e, cmd) {
		return dropEndpointHeld
	}
	if !ok {
		if outcome := c.rebuild(cmd); outcome != outcomePending {
			return outcome
		}
		e, _ = c.shared.table.ByID(cmd.claims.id)
	}
	if c.refusesCandidate(&e, c.shared.clock()) {
		return c.refuse(cmd, cmd.claims.id, proto.ErrorNotFound)
	}
	if e.Is(table.EverBound) && isStaleNonce(&e, cmd.from, cmd.nonce) {
		// The owner is there, but this BIND may be a replay.
		if a := c.shared.table.Account(e.Handle); a.DeferredUntil == 0 {
			a.DeferredUntil = tick(cmd.now) + c.shared.rules.deferral
			c.shared.table.SetFlags(e.Handle, table.ExpiryDeferred)
		}
		return dropNonce
	}
	c.bind(&e, cmd)
	return outBound
}

const (
	// heldTicks is for how long an owner keeps its endpoint after its last message other than a
	// BIND: a NAT may give a port to another player, whose client repeats its BIND each second.
	heldTicks = 2000 / table.TickMillis
	// lostTicks is for how long an allocation may take back the endpoint that it lost, and then
	// keeps it: more than three PING periods of a client.
	lostTicks = 10_000 / table.TickMillis
	// establishedTicks is how long it must have been bound there, longer than the client of
	// another one needs to take the endpoint back.
	establishedTicks = 5000 / table.TickMillis
)

// isHeld reports whether the endpoint belongs to another allocation that was heard there lately,
// so that a forged source displaces no player. A message can be forged too: an allocation that has
// just lost the endpoint takes it back. The entry may be zero.
func (c *control) isHeld(e *table.Entry, cmd *command) bool {
	var owner table.Entry
	if !c.shared.table.FindByEndpoint(cmd.from, &owner) || owner.Handle == e.Handle {
		return false
	}
	if e.Handle == 0 && !c.mayRecover(cmd.claims.id, cmd.claims.boot, cmd.now) {
		return true // An ERROR 4 would end the game of the owner's client.
	}
	now, keeps := tick(cmd.now), table.Tick(heldTicks)
	if c.shared.table.Account(owner.Handle).EndpointAt == 0 {
		keeps = lostTicks
	}
	if cmd.claims.path == pathValidated && !c.shared.table.IsValidated(owner.Handle) {
		return false // The owner may have been bound there by a forged BIND.
	}
	heard := c.shared.table.Activity(owner.Handle).LastHeard()
	return heard != 0 && now < heard+keeps && !c.hasLost(e.Handle, cmd.from, now)
}

func (c *control) hasLost(h table.Handle, ep endpoint.Endpoint, now table.Tick) bool {
	if h == 0 {
		return false
	}
	a := c.shared.table.Account(h)
	return a.LostEndpoint != 0 && now <= a.EndpointAt+lostTicks && a.LostEndpoint == uint32(c.endpointDigest(ep))
}

// moveEndpoint reports whether h took back an endpoint at which it was established, and then
// keeps, and whether there was a former owner.
func (c *control) moveEndpoint(h table.Handle, cmd *command) (takesBack, displaces bool) {
	now, own := tick(cmd.now), c.shared.table.Account(h)
	takesBack = c.hasLost(h, cmd.from, now)
	own.LostEndpoint, own.EndpointAt = 0, now
	if takesBack {
		own.EndpointAt = 0
	}
	displaced := c.shared.table.Bind(h, cmd.from)
	if displaced == 0 {
		return takesBack, false
	}
	c.stateFile.SetEndpoint(c.recordPlace(displaced), 0)
	if a := c.shared.table.Account(displaced); !takesBack && now >= a.EndpointAt+establishedTicks {
		a.LostEndpoint, a.EndpointAt = uint32(c.endpointDigest(cmd.from)), now
	}
	return takesBack, true
}

func (c *control) bind(e *table.Entry, cmd *command) {
	first, moved := !e.Is(table.EverBound), e.Endpoint != cmd.from
	c.shared.table.Activity(e.Handle).RecordReceive(tick(cmd.now))
	var after uint64
	if moved {
		c.shared.table.ClearFlags(e.Handle, table.BindConfirmed)
	}
	c.shared.table.RecordBind(e.Handle, cmd.nonce)
	if moved {
		takesBack, displaces := c.moveEndpoint(e.Handle, cmd)
		c.beginPath(e, cmd)
		c.nextHops.open(e.Handle)
		if takesBack {
			c.shared.table.Activity(e.Handle).RecordHeard(tick(cmd.now))
		}
		if after = c.shared.grace.nextOfWorkers(); displaces || !e.Endpoint.IsZero() {
			after = c.shared.grace.next()
		}
	}
	c.recordBind(e.Handle)
	if first {
		c.schedule(e.Handle)
		c.project(e.Handle).addPlayers(1, c.shared.clock())
	}
	d := newReply(after, cmd.from, proto.BindReceived{}.Append(c.buf[:0]))
	d.kind, d.handle, d.nonce = sendBindReceived, e.Handle, cmd.nonce
	c.submit(d)
	if moved && c.hooks.OnBind != nil {
		c.hooks.OnBind(BindEvent{ID: e.ID, Role: alloc.Role(e.Role), From: c.clientOf(cmd.from), First: first, Subject: c.subject(e.Handle)})
	}
	if first {
		c.takeOver(e)
	}
}

// beginPath begins the path to a source that may be forged. In the network of the former path, it
// is as good as that: a NAT has given the player another port. If it is validated, the BIND counts
// as a message.
func (c *control) beginPath(e *table.Entry, cmd *command) {
	t, limits := c.shared.table, c.shared.limits.Load()
	switch {
	case cmd.claims.path == pathValidated, e.Endpoint.Network() == cmd.from.Network() && t.IsValidated(e.Handle):
		t.BeginPath(e.Handle, table.ValidatedPath)
		t.Activity(e.Handle).RecordHeard(tick(cmd.now))
	case limits.unvalidatedRatio == 0:
		t.BeginPath(e.Handle, table.ValidatedPath)
	case cmd.claims.path == pathElsewhere:
		t.BeginPath(e.Handle, table.LimitedPath(uint32(maxBind*limits.unvalidatedRatio-proto.HeaderLen)))
	default:
		t.BeginPath(e.Handle, table.UnvalidatedPath(limits.unvalidated))
	}
}

// commitConnect has its checks in the order of rules.go.
func (c *control) commitConnect(cmd *command, sender *table.Entry) outcome {
	t := &cmd.claims
	if t.id == sender.ID {
		return c.refuse(cmd, sender.ID, proto.ErrorSelfConnect)
	}
	if !c.admits(t, sender) {
		return c.refuse(cmd, sender.ID, proto.ErrorUnauthorized)
	}
	host, ok := c.shared.table.ByID(t.id)
	switch {
	case !ok && c.mayRecover(t.id, t.boot, cmd.now):
		return dropRecovering
	case !ok:
		return c.refuse(cmd, sender.ID, proto.ErrorNotFound)
	case host.Endpoint.IsZero():
		return dropHostUnbound
	}
	if sender.Link != host.Handle {
		if outcome := c.takePlace(cmd, sender, &host); outcome != outAccepted {
			return outcome
		}
		c.link(sender, &host, tick(cmd.now))
	}
	reply := proto.Accepted{From: host.ID, To: sender.ID}.Append(c.buf[:0])
	c.charge(sender.Handle, len(reply))
	d := newReply(0, cmd.from, reply)
	if c.queue.awaits(host.Endpoint) {
		c.queue.push(d) // The host learns first of the link that gave its place to this one.
		return outAccepted
	}
	c.submit(d)
	return outAccepted
}

// takePlace returns outAccepted if a joiner may be linked to the host.
func (c *control) takePlace(cmd *command, joiner, host *table.Entry) outcome {
	a := c.shared.table.Account(host.Handle)
	full := a.Links >= a.MaxConnections
	switch {
	case full && !joiner.Is(table.Individual):
		return c.reject(joiner, host)
	case !full && c.isSlotReserved(joiner, host, cmd.now):
		return dropRecovering
	case !c.takeLink(joiner.Handle, c.shared.budgets.rates.joinerLinks, cmd.now):
		return dropRate
	}
	var old *table.Entry
	if full {
		var outcome outcome
		if old, outcome = c.yieldingLink(cmd, joiner, host); old == nil {
			return outcome
		}
	}
	if !c.takeLink(host.Handle, c.shared.budgets.rates.hostLinks, cmd.now) {
		return dropRate
	}
	if old != nil {
		c.replace(old, host, tick(cmd.now))
	}
	return outAccepted
}

func (c *control) takeLink(h table.Handle, rate table.Rate, now int64) bool {
	return c.shared.budgets.unlimited || rate.TakePlain(&c.shared.table.Account(h).LinkGate, now)
}

func (c *control) reject(joiner, host *table.Entry) outcome {
	c.reply(0, joiner, proto.Rejected{From: host.ID, To: joiner.ID}.Append(c.buf[:0]))
	return outRejected
}

const yieldTicks = heldTicks

// yieldingLink returns the allocation of the joiner's own player whose place at a full host is
// free for it, nil without one. The caller has drawn on the joiner's budget, since each link is
// looked at.
func (c *control) yieldingLink(cmd *command, joiner, host *table.Entry) (*table.Entry, outcome) {
	player := c.shared.table.Player(joiner.Handle)
	var old table.Entry
	var heard table.Tick
	for h := range c.shared.table.LinkedJoiners(host.Handle) {
		if c.shared.table.Player(h) != player {
			continue
		}
		e, _ := c.shared.table.At(h)
		if !e.Is(table.Individual) {
			continue
		}
		received, _ := c.shared.table.LastSeen(h)
		if !c.isOpen(e.Endpoint) {
			received = 0
		}
		if old.Handle == 0 || received < heard {
			old, heard = e, received
		}
	}
	switch {
	case old.Handle == 0:
		return nil, c.reject(joiner, host)
	case c.shared.recovering(cmd.now) && host.Is(table.Recovered):
		return nil, dropRecovering
	case tick(cmd.now) <= c.pause.extend(heard, yieldTicks):
		return nil, dropPlaceHeld
	}
	return &old, outAccepted
}

func (c *control) replace(old, host *table.Entry, now table.Tick) {
	c.unlink(old, host)
	c.shared.table.Activity(host.Handle).RecordNotice(now)
	c.reply(c.shared.grace.next(), host, proto.Disconnect{From: old.ID, To: host.ID}.Append(c.buf[:0]))
	if c.hooks.OnDisconnect != nil {
		c.hooks.OnDisconnect(DisconnectEvent{From: old.ID, To: host.ID, Subject: c.subject(old.Handle)})
	}
	c.end(old.Handle, EndReplaced)
}

// admits reports whether connection data is that of the host of the sender's match, or a ticket
// issued to this joiner or player.
func (c *control) admits(t *claims, sender *table.Entry) bool {
	h := sender.Handle
	if sender.Role != table.RoleJoiner || t.tenant != c.shared.table.Tenant(h) || t.match != c.shared.table.Account(h).Match {
		return false
	}
	switch t.role {
	case alloc.RoleHost:
		return true
	case seal.RoleTicket:
		return t.joiner == sender.ID || t.player == c.shared.table.Player(h)
	}
	return false
}

// The first link of a host ends its longer idle limit, so its clocks restart.
func (c *control) link(joiner, host *table.Entry, now table.Tick) {
	c.shared.table.Link(joiner.Handle, host.Handle)
	if e, _ := c.shared.table.At(host.Handle); !e.Is(table.EverLinked) {
		c.shared.table.SetFlags(host.Handle, table.EverLinked)
		c.shared.table.Activity(host.Handle).RecordReceive(now)
		c.schedule(host.Handle)
	}
	c.releaseReservedSlot(joiner)
	j := c.shared.table.Account(joiner.Handle)
	j.UnlinkAt, j.LinkBlocked, j.UnlinkedAt, j.RemovedByHost = 0, false, 0, false
	c.recordLink(joiner.Handle, host.Handle)
	if c.hooks.OnConnect != nil {
		c.hooks.OnConnect(ConnectEvent{Host: host.ID, Joiner: joiner.ID, Subject: c.subject(joiner.Handle)})
	}
}

// Real clients send two DISCONNECTs per link, so a missing link within a match is no error.
func (c *control) commitDisconnect(cmd *command, sender *table.Entry) outcome {
	var peer table.Entry
	if c.shared.table.FindPeer(sender, &cmd.peer, &peer) {
		if c.shared.budgets.spoofGuard.isSuspect(sender.Handle, cmd.now) {
			c.deferDisconnect(sender, &peer, tick(cmd.now))
			return outHeld
		}
		c.disconnect(sender, &peer, tick(cmd.now))
		return outDisconnected
	}
	if !c.sameMatch(sender, cmd.peer) {
		if c.shared.recovering(cmd.now) && sender.Is(table.Recovered) {
			return dropRecovering
		}
		return c.refuse(cmd, sender.ID, proto.ErrorNotConnected)
	}
	if joiner, ok := c.shared.table.ByID(cmd.peer); ok && joiner.Role == table.RoleJoiner {
		c.noteRemoval(sender, &joiner, tick(cmd.now))
	}
	c.blockRelink(sender, cmd.peer)
	c.reply(0, sender, proto.Disconnect{From: sender.ID, To: cmd.peer}.Append(c.buf[:0]))
	return outDisconnected
}

func (c *control) disconnect(from, peer *table.Entry, now table.Tick) {
	joiner, host := from, peer
	if from.Role == table.RoleHost {
		joiner, host = peer, from
	}
	c.noteUnlink(from, joiner, host, now)
	c.unlink(from, peer)
	after := c.shared.grace.next()
	m := proto.Disconnect{From: from.ID, To: peer.ID}
	if !peer.Endpoint.IsZero() {
		c.shared.table.Activity(peer.Handle).RecordNotice(now)
		c.reply(after, peer, m.Append(c.buf[:0]))
	}
	if !from.Endpoint.IsZero() {
		c.reply(after, from, m.Append(c.buf[:0]))
	}
	if c.hooks.OnDisconnect != nil {
		c.hooks.OnDisconnect(DisconnectEvent{From: from.ID, To: peer.ID, Subject: c.subject(from.Handle)})
	}
}

func (c *control) unlink(a, b *table.Entry) {
	joiner, host := a, b
	if a.Role == table.RoleHost {
		joiner, host = b, a
	}
	c.shared.table.Unlink(joiner.Handle)
	j := c.shared.table.Account(joiner.Handle)
	j.UnlinkAt, j.LinkBlocked = 0, joiner.Is(table.Recovered)
	c.recordLink(joiner.Handle, host.Handle)
}

func (c *control) deferDisconnect(sender, peer *table.Entry, now table.Tick) {
	joiner := sender
	if sender.Role == table.RoleHost {
		joiner = peer
	}
	if a := c.shared.table.Account(joiner.Handle); a.UnlinkAt == 0 {
		a.UnlinkAt, a.DisconnectedBy = now+confirmTicks, sender.Role
		c.schedule(joiner.Handle)
	}
}

func (c *control) commitClose(cmd *command, sender *table.Entry) outcome {
	if !c.shared.budgets.spoofGuard.isSuspect(sender.Handle, cmd.now) {
		c.end(sender.Handle, EndClosed)
		return outClosed
	}
	if a := c.shared.table.Account(sender.Handle); a.CloseAt == 0 {
		a.CloseAt = tick(cmd.now) + confirmTicks
		c.schedule(sender.Handle)
	}
	return outHeld
}

// The id of the host counts even after it has ended.
func (c *control) sameMatch(sender *table.Entry, peer proto.AllocationID) bool {
	match := c.shared.table.Account(sender.Handle).Match
	if peer == sender.ID {
		return false
	}
	if peer == match {
		return true
	}
	e, ok := c.shared.table.ByID(peer)
	return ok && c.shared.table.Account(e.Handle).Match == match
}

func (c *control) refuse(cmd *command, id proto.AllocationID, code proto.ErrorCode) outcome {
	if !c.shared.budgets.takeError(cmd.from, code, cmd.now) {
		return dropBudget
	}
	if cmd.kind != proto.TypeBind { // Else the source has no allocation.
		c.charge(cmd.sender.Handle, errorLen)
	}
	c.submit(newReply(0, cmd.from, proto.Error{ID: id, Code: code}.Append(c.buf[:0])))
	return errorOutcomes[code]
}

// end sends nothing to peers: the end of a host would cause a hundred datagrams.
func (c *control) end(h table.Handle, why EndReason) {
	a := c.shared.table.Account(h)
	c.wheel.remove(h)
	c.shared.sealer.Release(a.Epoch)
	place := c.recordPlace(h)
	heard := c.shared.table.Activity(h).LastHeard() != 0
	tenant, subject := c.tenantName(c.shared.table.Tenant(h)), c.subject(h)
	delete(c.tags, h)
	sent, age := c.sent(h), since(a.ReservedAt, tick(c.shared.clock()))
	delete(c.sentTotals, h)
	if e, ok := c.shared.table.At(h); ok {
		c.releaseReservedSlot(&e)
		c.countEnded(&e)
	}
	e, ok := c.shared.table.End(h)
	if !ok {
		return
	}
	migration := c.beginMigration(&e, why)
	if migration {
		c.recordMigration(c.migrations.running[e.ID], place)
	} else {
		c.stateFile.Remove(place)
	}
	delete(c.codes, h)
	if host, ok := c.shared.table.At(e.Link); ok {
		c.recordHost(&host)
	}
	if e.Is(table.Recovered) && c.recovery.ended != nil {
		c.recovery.ended[e.ID] = struct{}{}
	}
	after := c.shared.grace.next()
	if (why == EndExpired || why == EndMigrated) && !e.Endpoint.IsZero() && heard {
		d := newReply(after, e.Endpoint, proto.Error{ID: e.ID, Code: proto.ErrorTimeout}.Append(c.buf[:0]))
		d.kind = sendTimeout
		c.submit(d)
	}
	c.queue.push(action{after: after, kind: recycleSlot, handle: h})
	if c.hooks.OnEnd != nil {
		c.hooks.OnEnd(EndEvent{
			ID: e.ID, Role: alloc.Role(e.Role), Tenant: tenant, Reason: why, Migration: migration, EverBound: e.Is(table.EverBound),
			Age: age, SentDatagrams: sent.datagrams, SentBytes: sent.bytes, Subject: subject,
		})
	}
}

// reply sends a copy of pkt after a grace period, and after all earlier ones to its endpoint.
func (c *control) reply(after uint64, to *table.Entry, pkt []byte) {
	c.charge(to.Handle, len(pkt))
	c.submit(newReply(after, to.Endpoint, pkt))
}

func (c *control) charge(h table.Handle, size int) {
	c.shared.table.ChargeReply(h, c.shared.budgets.rates.excessPath, size, c.shared.clock())
}

func newReply(after uint64, to endpoint.Endpoint, pkt []byte) action {
	d := action{after: after, kind: sendReply, to: to}
	d.size = uint8(copy(d.room[:], pkt))
	return d
}

func (c *control) subject(h table.Handle) Subject {
	return Subject{Match: c.shared.table.Account(h).Match, Player: c.shared.table.Player(h), Tag: c.tags[h]}
}

func (c *control) setTag(id proto.AllocationID, tag uint64) {
	if e, ok := c.shared.table.ByID(id); ok && tag != 0 {
		c.tags[e.Handle] = tag
	}
}
