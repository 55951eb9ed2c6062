package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// received collects the ends that hooks tell of.
type received struct {
	mu     sync.Mutex
	events []string
}

func (h *received) hooks() engine.Hooks {
	return engine.Hooks{
		OnEnd:        func(e engine.EndEvent) { h.add("end", e.ID, e.Role, e.Reason) },
		OnDisconnect: func(e engine.DisconnectEvent) { h.add("disconnect", e.From, e.To) },
		OnReturn:     func(e engine.ReturnEvent) { h.add("return", e.ID, e.Tenant, e.MaxConnections) },
	}
}

func (h *received) add(words ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintln(words...))
}

func (h *received) has(words ...any) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.events, fmt.Sprintln(words...))
}

// TestEnd: a host that the operator closes hears nothing at once, ERROR 3 for
// what it sends and ERROR 4 for its BIND; its player learns by ERROR 5.
func TestEnd(t *testing.T) {
	t.Parallel()
	var events received
	r, host, p := drainMatch(t, engine.Config{Hooks: events.hooks()})
	id := proto.AllocationID(host.Cred.ID)
	host.Send(p.Cred.ID, "welcome") // An endpoint that sent nothing but a BIND is events nothing.
	testkit.Eventually(t, "the player hears", p.HasReceived(host.Cred.ID, "welcome"))
	if err := r.End(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if !events.has("end", id, alloc.RoleHost, engine.EndOperator) {
		t.Errorf("events %q", events.events)
	}
	if st := r.Stats(); st.Allocations != 1 || st.Links != 0 || st.Seats != 0 {
		t.Errorf("%d allocations, %d links, %d seats", st.Allocations, st.Links, st.Seats)
	}
	if err := r.End(t.Context(), id); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	testkit.Eventually(t, "the host learns by ERROR 4", host.HasLogged("error 4"))
	if slices.Contains(host.Log(), "error 1") {
		t.Errorf("the host's log: %q", host.Log())
	}
	p.Send(host.Cred.ID, "anybody there?")
	testkit.Eventually(t, "the player learns by ERROR 5", p.HasLogged("error 5"))
}

// TestEndUnbound: a reservation that nobody bound is given back.
func TestEndUnbound(t *testing.T) {
	t.Parallel()
	var events received
	r := enginetest.Start(t, engine.Config{Hooks: events.hooks()})
	res := r.Host("host", 7)
	if st := r.Stats(); st.Seats != 8 {
		t.Errorf("%d seats", st.Seats)
	}
	if err := r.End(t.Context(), res.ID); err != nil {
		t.Fatal(err)
	}
	if st := r.Stats(); st.Seats != 0 || st.Allocations != 0 {
		t.Errorf("%d seats, %d allocations", st.Seats, st.Allocations)
	}
	late := player(t, r, enginetest.UTP2, res)
	testkit.Eventually(t, "its BIND earns ERROR 4", late.HasLogged("error 4"))
}

// TestKick: both sides forget each other, the other player plays on, and the
// one who was kicked comes back with another allocation only.
func TestKick(t *testing.T) {
	t.Parallel()
	var events received
	r, host, p := drainMatch(t, engine.Config{Hooks: events.hooks()})
	q := drainJoin(t, r, "q", host)
	hostID, id := proto.AllocationID(host.Cred.ID), proto.AllocationID(p.Cred.ID)
	if err := r.Kick(t.Context(), hostID); !errors.Is(err, engine.ErrKickHost) {
		t.Errorf("the host: %v", err)
	}
	if err := r.Kick(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the host forgets who was kicked", host.HasPeers(1))
	testkit.Eventually(t, "who was kicked forgets the host", p.HasPeers(0))
	if !events.has("disconnect", hostID, id) || !events.has("end", id, alloc.RoleJoiner, engine.EndOperator) {
		t.Errorf("events %q", events.events)
	}
	testkit.Eventually(t, "it cannot come back", p.HasLogged("error 4"))
	host.Send(q.Cred.ID, "go on")
	testkit.Eventually(t, "the other one plays on", q.HasReceived(host.Cred.ID, "go on"))
	if err := r.Kick(t.Context(), id); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	drainJoin(t, r, "p", host)
	if st := r.Stats(); st.Allocations != 3 || st.Links != 2 {
		t.Errorf("%d allocations, %d links", st.Allocations, st.Links)
	}
}

// TestEndedDoesNotComeBack: who was ended or kicked does not come back after a kill,
// and who is ended before it came back does not either. The hook tells of hosts
// that did.
func TestEndedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	var events received
	s := newSite(t, engine.Config{Hooks: events.hooks()})
	gone := s.play(enginetest.UTP2, s.relay.Host("gone", 2))
	late := s.play(enginetest.UTP2, s.relay.Host("late", 2))
	host := s.play(enginetest.UTP2, s.relay.Host("host", 5))
	p, q := s.join(enginetest.UTP2, "p", host), s.join(enginetest.UTP2, "q", host)
	pause(true, gone, late, host, p, q)
	for _, err := range []error{s.relay.End(t.Context(), gone.Cred.ID), s.relay.Kick(t.Context(), p.Cred.ID)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.restart("crashed")
	if err := s.relay.End(t.Context(), late.Cred.ID); err != nil {
		t.Errorf("one that may yet come back: %v", err)
	}
	if err := s.relay.End(t.Context(), late.Cred.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("the same again: %v", err)
	}
	if err := s.relay.End(t.Context(), gone.Cred.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("one that the file does not know: %v", err)
	}
	if !events.has("end", proto.AllocationID(late.Cred.ID), alloc.RoleHost, engine.EndOperator) {
		t.Errorf("events %q", events.events)
	}
	pause(false, gone, late, host, p, q)
	s.talk("after the restart", host, q)
	for _, u := range []*enginetest.UTP{gone, late, p} {
		testkit.Eventually(t, "it stays out", u.HasLogged("error 4"))
	}
	if !events.has("return", proto.AllocationID(host.Cred.ID), enginetest.Tenant.Hash(), 5) {
		t.Errorf("events %q", events.events)
	}
	if st := s.relay.Stats(); st.Allocations != 2 || st.Seats != 6 {
		t.Errorf("%d allocations, %d seats", st.Allocations, st.Seats)
	}
}

// TestEndWithoutAFile: where no file says who was there, who is ended before it
// came back stays out as well.
func TestEndWithoutAFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{})
	late, host := s.play(enginetest.UTP2, s.relay.Host("late", 2)), s.play(enginetest.UTP2, s.relay.Host("host", 2))
	pause(true, late, host)
	s.restart("file lost")
	if err := s.relay.End(t.Context(), late.Cred.ID); err != nil {
		t.Error(err)
	}
	pause(false, late, host)
	testkit.Eventually(t, "it stays out", late.HasLogged("error 4"))
	testkit.Eventually(t, "the other one comes back", func() bool { return s.relay.Stats().Bound == 1 })
}
