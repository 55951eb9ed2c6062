package engine

import (
	"context"
	"errors"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// ErrKickHost is returned by [Server.Kick] for a host: a match cannot go on without
// its host, so use [Server.End].
var ErrKickHost = errors.New("engine: a host cannot be kicked from its own match, only closed")

// End ends an allocation as if its owner had sent CLOSE: its links are closed without a message,
// its later messages get ERROR 3 and its next BIND ERROR 4, also after a restart. One of the
// previous run cannot come back any more, and is an alloc.ErrNotFound if the state file does not
// have it. Errors: alloc.ErrNotFound, and those of every call, see [Server].
func (s *Server) End(ctx context.Context, id proto.AllocationID) error {
	return s.onControl(ctx, func(c *control) error { return c.endByID(id, c.shared.clock()) })
}

// Kick removes a joiner from its match and ends its allocation. Host and joiner each get a
// DISCONNECT from the other, since clients act on that. The join code still works. Errors:
// [ErrKickHost], alloc.ErrNotFound, and those of every call, see [Server].
func (s *Server) Kick(ctx context.Context, joiner proto.AllocationID) error {
	return s.onControl(ctx, func(c *control) error { return c.kick(joiner, c.shared.clock()) })
}

func (c *control) endByID(id proto.AllocationID, now int64) error {
	if e, ok := c.shared.table.ByID(id); ok {
		c.end(e.Handle, EndOperator)
		c.blockRecovery(id)
		return nil
	}
	return c.abandonRecovery(id, EndOperator, now)
}

func (c *control) kick(id proto.AllocationID, now int64) error {
	e, ok := c.shared.table.ByID(id)
	if !ok {
		return c.abandonRecovery(id, EndOperator, now)
	}
	if e.Role == table.RoleHost {
		return ErrKickHost
	}
	if host, linked := c.shared.table.At(e.Link); linked {
		c.kickLink(&e, &host, tick(now))
	}
	c.end(e.Handle, EndOperator)
	c.blockRecovery(id)
	return nil
}

func (c *control) blockRecovery(id proto.AllocationID) {
	if c.recovery.ended != nil {
		c.recovery.ended[id] = struct{}{}
	}
}

func (c *control) kickLink(joiner, host *table.Entry, now table.Tick) {
	c.unlink(joiner, host)
	after := c.shared.grace.next()
	for _, m := range []struct{ from, to *table.Entry }{{host, joiner}, {joiner, host}} {
		if m.to.Endpoint.IsZero() {
			continue
		}
		c.shared.table.Activity(m.to.Handle).RecordNotice(now)
		c.reply(after, m.to, proto.Disconnect{From: m.from.ID, To: m.to.ID}.Append(c.buf[:0]))
	}
	if c.hooks.OnDisconnect != nil {
		c.hooks.OnDisconnect(DisconnectEvent{From: host.ID, To: joiner.ID, Subject: c.subject(host.Handle)})
	}
}

func (c *control) abandonRecovery(id proto.AllocationID, why EndReason, now int64) error {
	_, ended := c.recovery.ended[id]
	if ended || !c.shared.recovering(now) || !c.recovery.mayHold(id) {
		return alloc.ErrNotFound
	}
	c.blockRecovery(id)
	i, ok := c.recovery.awaitedRecord(id)
	if !ok {
		return alloc.ErrNotFound // It may be of the previous run, and then its BIND would be accepted.
	}
	lost := &c.recovery.records[i]
	c.recovery.returned[i] = true
	c.recovery.missing--
	c.seats.recoverable -= recoverableSeats(&lost.Record)
	c.stateFile.Remove(c.awaitedPlace(i))
	if c.hooks.OnEnd != nil {
		c.hooks.OnEnd(EndEvent{ID: id, Role: roleFromFlags(lost.Flags), Tenant: c.tenantName(lost.Tenant), Reason: why})
	}
	return nil
}
