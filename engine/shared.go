package engine

import (
	"log/slog"
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/table"
)

// shared is the state that all workers and control share. Rules, sealer, checker and clock are
// fixed before Run. Workers read it for each datagram, so the gates, which are written in a flood,
// are in the budgets.
type shared struct {
	clock       func() int64        // milliseconds since some time before the start
	tap         atomic.Pointer[tap] // of the capture that runs; nil: none
	table       *table.Table
	limits      atomic.Pointer[limitRates]
	grace       *grace
	rules       rules
	sealer      *seal.Sealer
	budgets     *budgets
	previousRun *previousRun
	checker     checker
	sources     *sources
	log         *slog.Logger
	lastFault   atomic.Int64 // ms; of the last log line about a panic

	reportsRefusals bool // there is a Hooks.OnRefuse
}

func (s *shared) recovering(now int64) bool { return now < s.rules.recoverUntil }

// limitRates are replaced as a whole; a worker loads them for each RELAY.
type limitRates struct {
	quotas      [4]table.Quota // by table.Role
	unvalidated uint32         // bytes to an endpoint whose path is not validated
	// With zero each path is validated.
	unvalidatedRatio int
}

func (l Limits) compile(unlimited bool) *limitRates {
	l = l.withDefaults(unlimited)
	return &limitRates{
		quotas: [4]table.Quota{
			table.RoleJoiner: table.NewQuota(l.JoinerDatagrams, l.JoinerBytes),
			table.RoleHost:   table.NewQuota(l.HostDatagrams, l.HostBytes),
		},
		unvalidated:      uint32(l.UnvalidatedBytes),
		unvalidatedRatio: l.UnvalidatedRatio,
	}
}

// SetLimits changes [Config].Limits from the next datagram on; UnvalidatedBytes and
// UnvalidatedRatio from an allocation's next BIND to another endpoint. Any goroutine may call it.
// Error: an invalid field; then nothing changes.
func (s *Server) SetLimits(l Limits) error {
	if err := l.validate(); err != nil {
		return err
	}
	s.setLimits(l)
	return nil
}

func (s *Server) setLimits(l Limits) {
	compiled := l.compile(s.cfg.Unlimited)
	s.shared.limits.Store(compiled)
	if s.cfg.FastPath != nil {
		for role, q := range compiled.quotas {
			s.cfg.fastPath().SetQuota(table.Role(role), q)
		}
	}
}
