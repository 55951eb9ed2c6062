package engine

import (
	"github.com/ferryrelay/ferry/alloc"
)

// Observe implements [alloc.Relay]: o hears of each allocation that is bound or ends from now on,
// before Hooks. alloc.NewService calls it. It may be called at any time and returns nil.
func (s *Server) Observe(o alloc.Observer) error {
	s.observing.Lock()
	defer s.observing.Unlock()
	old := s.observers()
	all := append(old[:len(old):len(old)], o)
	s.observed.Store(&all)
	return nil
}

func (s *Server) observers() []alloc.Observer {
	if all := s.observed.Load(); all != nil {
		return *all
	}
	return nil
}

func (s *Server) observedHooks(h Hooks) Hooks {
	h.OnBind = afterObservers(s, h.OnBind, func(o alloc.Observer, e BindEvent) { o.OnBind(e.ID) })
	h.OnEnd = afterObservers(s, h.OnEnd, func(o alloc.Observer, e EndEvent) {
		if e.Migration {
			o.OnBind(e.ID) // Its code remains. It may not have been bound in this run.
		} else {
			o.OnEnd(e.ID)
		}
	})
	h.OnMigrate = afterObservers(s, h.OnMigrate, func(o alloc.Observer, e MigrateEvent) {
		if err := o.OnMigrate(e.Tenant, e.Code, e.Host, e.NewHost); err != nil {
			s.log.Error("a player has taken the place of its host, but the join code does not lead to it", "host", e.NewHost.String(), "error", err)
		}
	})
	h.OnMigrationEnd = afterObservers(s, h.OnMigrationEnd, alloc.Observer.OnEnd)
	return h
}

func afterObservers[E any](s *Server, hook func(E), observe func(alloc.Observer, E)) func(E) {
	return func(e E) {
		for _, o := range s.observers() {
			observe(o, e)
		}
		if hook != nil {
			hook(e)
		}
	}
}
