package engine

import (
	"github.com/ferryrelay/ferry/internal/table"
)

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
