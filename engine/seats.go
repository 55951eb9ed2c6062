package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/internal/table"
)

// A seat is room for one player. A host takes one, and one for each player that
// it asked for, whether they come or not, from its reservation to its end.

// maxMaxSeats keeps the limit within an int everywhere.
const maxMaxSeats = 1<<31 - 1

// seats counts those that are taken. It belongs to control but for taken.
type seats struct {
	taken atomic.Int64
	most  int64 // 0: no limit
	// awaited are those of hosts which may yet come back after a restart: one for
	// the host and one for each link that it had. What it asked for is in its
	// connection data, which has not been seen yet.
	awaited int64
}

func (c *control) seatsOf(host table.Handle) int64 {
	return 1 + int64(c.shared.table.Account(host).MaxConnections)
}

// seated reports whether a host with room for most players finds its seats. One
// that comes back after a restart is not asked: its match goes on.
func (c *control) seated(most uint16) bool {
	s := &c.seats
	return s.most == 0 || s.taken.Load()+s.awaited+1+int64(most) <= s.most
}

// awaitedSeats returns those of a host of the run before.
func awaitedSeats(r *statefile.Record) int64 {
	if r.Flags&statefile.Host == 0 {
		return 0
	}
	return 1 + int64(r.Links)
}

// SetMaxSeats changes [Config].MaxSeats from now on; nobody who is there is
// asked to leave. Error: alloc.ErrUnavailable when the relay does not run.
func (s *Server) SetMaxSeats(ctx context.Context, most int) error {
	if most < 0 || int64(most) > maxMaxSeats {
		return fmt.Errorf("engine: at most %d seats are out of range", most)
	}
	return s.ask(ctx, func(c *control) { c.seats.most = int64(most) })
}
