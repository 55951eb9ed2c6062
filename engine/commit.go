package engine

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/sock"
	"github.com/ferryrelay/ferry/proto"
)

// commit gives control's verdict on one command and repeats every check of
// state that the worker made: state may have changed since. It does no I/O:
// what is to be sent goes to the queue.
func (c *control) commit(cmd *command) Outcome {
	if cmd.kind == proto.TypeBind {
		return c.commitBind(cmd)
	}
	sender, ok := c.table.At(cmd.sender.Handle)
	if !ok || sender.Endpoint != cmd.from {
		return DropStale
	}
	switch cmd.kind {
	case proto.TypeConnectRequest:
		return c.commitConnect(cmd, &sender)
	case proto.TypeDisconnect:
		return c.commitDisconnect(cmd, &sender)
	default:
		c.end(sender.Handle, EndClosed)
		return OutClosed
	}
}

// commitBind binds an allocation to the endpoint of an authentic BIND.
func (c *control) commitBind(cmd *command) Outcome {
	e, ok := c.table.ByID(cmd.id)
	if !ok {
		// It was sealed under this boot, so it was here and has ended.
		return c.refuse(cmd, cmd.id, proto.ErrorNotFound)
	}
	a := c.table.Account(e.Handle)
	same := e.Endpoint == cmd.from
	if a.EverBound && (cmd.nonce < a.Nonce || cmd.nonce == a.Nonce && !same) {
		// Its owner lives, but cannot prove that this BIND is not a replay.
		if a.Deferred == 0 {
			a.Deferred = tick(cmd.now) + c.rules.deferral
		}
		return DropNonce
	}
	first := !a.EverBound
	a.Nonce, a.EverBound = cmd.nonce, true
	c.table.Heard(e.Handle, tick(cmd.now))
	var after uint64
	if !same {
		c.table.Bind(e.Handle, cmd.from)
		after = c.grace.next()
	}
	if first {
		c.schedule(e.Handle)
	}
	c.reply(after, cmd.from, proto.BindReceived{}.Append(c.buf[:0]))
	if !same && c.hooks.OnBind != nil {
		c.hooks.OnBind(BindEvent{ID: e.ID, Role: e.Role, From: cmd.from.AddrPort(), First: first})
	}
	return OutBound
}

// commitConnect opens the link that a joiner asks for. The order of the checks
// is part of the protocol: see the table in doc.go.
func (c *control) commitConnect(cmd *command, sender *alloc.Entry) Outcome {
	t := &cmd.target
	if t.id == sender.ID {
		return c.refuse(cmd, sender.ID, proto.ErrorSelfConnect)
	}
	if !admits(t, sender, c.table.Account(sender.Handle)) {
		return c.refuse(cmd, sender.ID, proto.ErrorUnauthorized)
	}
	host, ok := c.table.ByID(t.id)
	if !ok {
		return c.refuse(cmd, sender.ID, proto.ErrorNotFound)
	}
	if host.Endpoint.IsZero() {
		return DropHostUnbound
	}
	if sender.Link != host.Handle {
		a := c.table.Account(host.Handle)
		if a.Links >= a.MaxConnections {
			c.reply(0, cmd.from, proto.Rejected{From: host.ID, To: sender.ID}.Append(c.buf[:0]))
			return OutRejected
		}
		c.link(sender, &host, tick(cmd.now))
	}
	c.reply(0, cmd.from, proto.Accepted{From: host.ID, To: sender.ID}.Append(c.buf[:0]))
	return OutAccepted
}

// admits reports whether connection data opens a link for the sender: it names
// the host of the sender's own match, and is either the host's own data or a
// ticket issued to this joiner, or to the same player.
func admits(t *target, sender *alloc.Entry, a *alloc.Account) bool {
	if sender.Role != alloc.RoleJoiner || t.tenant != a.Tenant || t.match != a.Match {
		return false
	}
	switch t.role {
	case alloc.RoleHost:
		return true
	case alloc.RoleTicket:
		return t.joiner == sender.ID || t.player == a.Player
	}
	return false
}

// link opens a link. A host that gets its first one goes from the long idle
// limit to the short one, so its clocks start again.
func (c *control) link(joiner, host *alloc.Entry, now alloc.Tick) {
	c.table.Link(joiner.Handle, host.Handle)
	if a := c.table.Account(host.Handle); !a.EverLinked {
		a.EverLinked = true
		c.table.Heard(host.Handle, now)
		c.schedule(host.Handle)
	}
	if c.hooks.OnConnect != nil {
		c.hooks.OnConnect(ConnectEvent{Host: host.ID, Joiner: joiner.ID})
	}
}

// commitDisconnect closes a link, tells the peer and echoes. Real clients send
// two DISCONNECTs per link, so a missing link within a match is no error.
func (c *control) commitDisconnect(cmd *command, sender *alloc.Entry) Outcome {
	m := proto.Disconnect{From: sender.ID, To: cmd.peer}
	if peer, ok := c.table.Peer(sender, cmd.peer); ok {
		joiner := sender
		if sender.Role == alloc.RoleHost {
			joiner = &peer
		}
		c.table.Unlink(joiner.Handle)
		after := c.grace.next()
		if !peer.Endpoint.IsZero() {
			c.table.Active(peer.Handle, tick(cmd.now))
			c.reply(after, peer.Endpoint, m.Append(c.buf[:0]))
		}
		c.reply(after, cmd.from, m.Append(c.buf[:0]))
		if c.hooks.OnDisconnect != nil {
			c.hooks.OnDisconnect(DisconnectEvent{From: sender.ID, To: cmd.peer})
		}
		return OutDisconnected
	}
	if !c.sameMatch(sender, cmd.peer) {
		return c.refuse(cmd, sender.ID, proto.ErrorNotConnected)
	}
	c.reply(0, cmd.from, m.Append(c.buf[:0]))
	return OutDisconnected
}

// sameMatch reports whether peer is another member of the sender's match. The
// host counts even when it has ended; of other members nothing is known then.
func (c *control) sameMatch(sender *alloc.Entry, peer proto.AllocationID) bool {
	match := c.table.Account(sender.Handle).Match
	if peer == sender.ID {
		return false
	}
	if peer == match {
		return true
	}
	e, ok := c.table.ByID(peer)
	return ok && c.table.Account(e.Handle).Match == match
}

// refuse answers a command with an ERROR, within the budgets.
func (c *control) refuse(cmd *command, id proto.AllocationID, code proto.ErrorCode) Outcome {
	if !c.take(cmd.from, cmd.now) {
		return DropBudget
	}
	c.reply(0, cmd.from, proto.Error{ID: id, Code: code}.Append(c.buf[:0]))
	return errorOutcomes[code]
}

// end removes an allocation with its links, and tells no peer: a host's end
// would otherwise send a hundred datagrams for one.
func (c *control) end(h alloc.Handle, why EndReason) {
	a := c.table.Account(h)
	c.wheel.remove(h)
	c.sealer.Release(a.Epoch)
	e, ok := c.table.End(h)
	if !ok {
		return
	}
	after := c.grace.next()
	if why == EndExpired && !e.Endpoint.IsZero() {
		c.reply(after, e.Endpoint, proto.Error{ID: e.ID, Code: proto.ErrorTimeout}.Append(c.buf[:0]))
	}
	c.queue.push(after, recycleSlot, h)
	if c.hooks.OnEnd != nil {
		c.hooks.OnEnd(EndEvent{ID: e.ID, Role: e.Role, Reason: why})
	}
}

// reply queues a datagram that leaves when grace period after is over, and
// after everything queued before it. It copies pkt.
func (c *control) reply(after uint64, to sock.Endpoint, pkt []byte) {
	d := c.queue.add()
	d.after, d.does, d.to = after, sendReply, to
	d.size = uint8(copy(d.room[:], pkt))
}
