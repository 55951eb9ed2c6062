package engine

import (
	"context"
	"errors"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// ErrHost is returned by [Server.Kick] for a host: what is left of a match
// without it is nothing, so it can only be ended.
var ErrHost = errors.New("engine: a host cannot be kicked from its own match, only closed")

// End ends an allocation as if its owner had sent CLOSE: its links go, nobody is
// told, and what it sends from then on earns ERROR 3, its next BIND ERROR 4.
// After a restart it stays out, too. One that may yet come back after a restart
// is kept from that. Errors: alloc.ErrNotFound, alloc.ErrUnavailable.
func (s *Server) End(ctx context.Context, id proto.AllocationID) error {
	var verdict error
	if err := s.ask(ctx, func(c *control) { verdict = c.endNamed(id, c.shared.clock()) }); err != nil {
		return err
	}
	return verdict
}

// Kick removes a player from its match and ends its allocation: both sides get
// a DISCONNECT that names the other one as the sender, which is what clients
// act on, and the player may not come back with this allocation. With the join
// code it may get another one. Errors: ErrHost, alloc.ErrNotFound,
// alloc.ErrUnavailable.
func (s *Server) Kick(ctx context.Context, joiner proto.AllocationID) error {
	var verdict error
	if err := s.ask(ctx, func(c *control) { verdict = c.kick(joiner, c.shared.clock()) }); err != nil {
		return err
	}
	return verdict
}

func (c *control) endNamed(id proto.AllocationID, now int64) error {
	if e, ok := c.shared.table.ByID(id); ok {
		c.end(e.Handle, EndOperator)
		c.keepOut(id)
		return nil
	}
	return c.giveUp(id, now)
}

func (c *control) kick(id proto.AllocationID, now int64) error {
	e, ok := c.shared.table.ByID(id)
	if !ok {
		return c.giveUp(id, now)
	}
	if e.Role == table.RoleHost {
		return ErrHost
	}
	if host, linked := c.shared.table.At(e.Link); linked {
		c.separate(&e, &host, tick(now))
	}
	c.end(e.Handle, EndOperator)
	c.keepOut(id)
	return nil
}

// keepOut remembers for as long as somebody may come back who does not.
func (c *control) keepOut(id proto.AllocationID) {
	if c.recovery.ended != nil {
		c.recovery.ended[id] = struct{}{}
	}
}

// separate closes the link between two, and tells each that the other closed
// it.
func (c *control) separate(joiner, host *table.Entry, now table.Tick) {
	c.unlink(joiner, host)
	after := c.shared.grace.next()
	for _, m := range []struct{ from, to *table.Entry }{{host, joiner}, {joiner, host}} {
		if m.to.Endpoint.IsZero() {
			continue
		}
		c.shared.table.Activity(m.to.Handle).Active(now)
		c.reply(after, m.to.Endpoint, proto.Disconnect{From: m.from.ID, To: m.to.ID}.Append(c.buf[:0]))
	}
	if c.hooks.OnDisconnect != nil {
		c.hooks.OnDisconnect(DisconnectEvent{From: host.ID, To: joiner.ID})
	}
}

// giveUp keeps an allocation of the run before from coming back.
func (c *control) giveUp(id proto.AllocationID, now int64) error {
	_, ended := c.recovery.ended[id]
	if ended || !c.shared.recovering(now) || !c.recovery.expects(id) {
		return alloc.ErrNotFound
	}
	c.keepOut(id)
	i, ok := c.recovery.awaited(id)
	if !ok {
		return nil // No record says that it was there, but its BIND would be believed.
	}
	lost := &c.recovery.records[i]
	c.recovery.back[i] = true
	c.recovery.missing--
	c.seats.awaited -= awaitedSeats(&lost.Record)
	c.stateFile.Remove(lost.Place)
	if c.hooks.OnEnd != nil {
		c.hooks.OnEnd(EndEvent{ID: id, Role: roleOf(lost.Flags), Reason: EndOperator})
	}
	return nil
}
