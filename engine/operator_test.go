package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func listAll(t *testing.T, r *enginetest.Relay, f engine.Filter, limit int) (all []engine.Allocation) {
	t.Helper()
	var at uint32
	for {
		page, next, err := r.Allocations(t.Context(), f, at, limit)
		if err != nil {
			t.Fatal(err)
		}
		if limit > 0 && len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		all = append(all, page...)
		if next == 0 {
			return all
		}
		at = next
	}
}

// TestListing lists more allocations than control looks at in one step.
func TestListing(t *testing.T) {
	t.Parallel()
	const hosts = 700
	r := enginetest.Start(t, engine.Config{Timeouts: engine.Timeouts{Bind: time.Hour}})
	want := map[proto.AllocationID]bool{}
	for range hosts {
		want[r.Host("h", 3).ID] = true
	}
	for _, limit := range []int{0, 1000, 300, 256, 7} {
		seen := map[proto.AllocationID]int{}
		for _, a := range listAll(t, r, engine.Filter{}, limit) {
			seen[a.ID]++
			if a.Role != alloc.RoleHost || a.Match != a.ID || a.MaxConnections != 3 || a.Name != enginetest.Tenant ||
				a.Tenant != enginetest.Tenant.Hash() || a.EverBound || a.Recovered || a.Transport != "" || a.Endpoint.IsValid() {
				t.Fatalf("%+v", a)
			}
		}
		if len(seen) != hosts {
			t.Errorf("limit %d: %d allocations, want %d", limit, len(seen), hosts)
		}
		for id, n := range seen {
			if n != 1 || !want[id] {
				t.Errorf("limit %d: %v is listed %d times", limit, id, n)
			}
		}
	}
	if page, next, err := r.Allocations(t.Context(), engine.Filter{}, 1<<32-1, 10); err != nil || len(page) != 0 || next != 0 {
		t.Errorf("beyond the end: %d, next %d, %v", len(page), next, err)
	}
	if page, next, err := r.Allocations(t.Context(), engine.Filter{Bound: true}, 0, 0); err != nil ||
		len(page) != 0 || next != 0 {
		t.Errorf("no allocation is bound: %d, next %d, %v", len(page), next, err)
	}
}

func TestListingFilters(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	other := alloc.Tenant{Project: "other"}
	res, err := r.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: other, Individual: true}, MaxConnections: 9})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter engine.Filter
		want   []proto.AllocationID
	}{
		"all":          {engine.Filter{}, []proto.AllocationID{host.Cred.ID, p.Cred.ID, res.ID}},
		"hosts":        {engine.Filter{Role: alloc.RoleHost}, []proto.AllocationID{host.Cred.ID, res.ID}},
		"joiners":      {engine.Filter{Role: alloc.RoleJoiner}, []proto.AllocationID{p.Cred.ID}},
		"match":        {engine.Filter{Match: host.Cred.ID}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"players":      {engine.Filter{Match: host.Cred.ID, Role: alloc.RoleJoiner}, []proto.AllocationID{p.Cred.ID}},
		"bound":        {engine.Filter{Bound: true}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"not bound":    {engine.Filter{Unbound: true}, []proto.AllocationID{res.ID}},
		"tenant":       {engine.Filter{Tenant: other.Hash()}, []proto.AllocationID{res.ID}},
		"individuals":  {engine.Filter{Individual: true}, []proto.AllocationID{res.ID}},
		"project":      {engine.Filter{Project: other.Project}, []proto.AllocationID{res.ID}},
		"no project":   {engine.Filter{Project: "nowhere"}, nil},
		"by UDP":       {engine.Filter{Transport: "udp4"}, []proto.AllocationID{host.Cred.ID, p.Cred.ID}},
		"by WebSocket": {engine.Filter{Transport: "ws"}, nil},
	} {
		got := map[proto.AllocationID]bool{}
		for _, a := range listAll(t, r, c.filter, 0) {
			got[a.ID] = true
		}
		for _, id := range c.want {
			if !got[id] {
				t.Errorf("%s: %v is missing", name, id)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %d allocations, want %d", name, len(got), len(c.want))
		}
	}
	for _, id := range []proto.AllocationID{host.Cred.ID, p.Cred.ID} {
		page, next, err := r.Allocations(t.Context(), engine.Filter{ID: id}, 0, 0)
		if err != nil || len(page) != 1 || next != 0 {
			t.Fatalf("%v: %v, %d allocations, next %d", id, err, len(page), next)
		}
		if a := page[0]; a.ID != id || a.Links != 1 || !a.EverBound || a.Transport != "udp4" || !a.Endpoint.Addr().IsLoopback() ||
			a.Match != proto.AllocationID(host.Cred.ID) {
			t.Errorf("%+v", a)
		}
	}
}

func TestListingEnds(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{})
	if page, _, err := r.Allocations(t.Context(), engine.Filter{ID: proto.AllocationID{1}}, 0, 0); err != nil || len(page) != 0 {
		t.Errorf("an id without an allocation: %v, %v", page, err)
	}
	r.Stop()
	ctx := context.Background()
	_, _, err := r.Allocations(ctx, engine.Filter{}, 0, 0)
	_, err2 := r.Usage(ctx)
	for _, err := range []error{err, err2, r.End(ctx, proto.AllocationID{1}), r.Kick(ctx, proto.AllocationID{1}), r.SetMaxSeats(ctx, 1)} {
		if !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func drainMatch(t *testing.T, cfg engine.Config) (r *enginetest.Relay, host, p *enginetest.UTP) {
	t.Helper()
	r = enginetest.Start(t, cfg)
	res := r.Host("host", 4)
	host = player(t, r, enginetest.UTP2, res)
	testkit.Eventually(t, "the host is bound", host.HasStatus(enginetest.Established))
	return r, host, drainJoin(t, r, "p", host)
}

func drainJoin(t *testing.T, r *enginetest.Relay, name string, host *enginetest.UTP) *enginetest.UTP {
	t.Helper()
	p := player(t, r, enginetest.UTP2, r.Joiner(name, host.Cred.ID))
	testkit.Eventually(t, name+" is bound", p.HasStatus(enginetest.Established))
	p.Connect()
	testkit.Eventually(t, name+" is let in", p.HasPeers(1))
	p.Send(host.Cred.ID, "hello from "+name)
	testkit.Eventually(t, "the host receives", host.HasReceived(p.Cred.ID, "hello from "+name))
	return p
}

func drain(t *testing.T, r *enginetest.Relay, cfg engine.DrainConfig) {
	t.Helper()
	if err := r.Drain(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
}

func reserveHost(r *enginetest.Relay) error {
	_, err := r.ReserveHost(context.Background(), alloc.HostRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, MaxConnections: 4})
	return err
}

func closes(u *enginetest.UTP) {
	u.SetPaused(true)
	u.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 11}, u.Cred.ID[:]))
}

// TestDrain: a relay that runs dry takes no hosts, still takes players for
// those that are alive, relays as before, and ends by itself with the last one.
func TestDrain(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	if r.Stats().Draining {
		t.Error("it drains from the start")
	}
	drain(t, r, engine.DrainConfig{})
	if err := reserveHost(r); !errors.Is(err, alloc.ErrDraining) || !r.Stats().Draining {
		t.Errorf("a host while it drains: %v", err)
	}
	late := drainJoin(t, r, "late", host)
	host.Send(p.Cred.ID, "go on")
	testkit.Eventually(t, "the first player still receives", p.HasReceived(host.Cred.ID, "go on"))
	closes(p)
	closes(late)
	testkit.Eventually(t, "both have left", func() bool { return r.Stats().Allocations == 1 })
	if r.Ended() {
		t.Fatal("it ended with a host alive")
	}
	closes(host)
	testkit.Eventually(t, "it ends by itself", r.Ended)
	r.Stop() // checks that Run returned nil
	if err := r.Drain(context.Background(), engine.DrainConfig{}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Drain after the end: %v", err)
	}
}

func TestDrainEmpty(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{})
	drain(t, r, engine.DrainConfig{Deadline: time.Hour})
	testkit.Eventually(t, "it ends", r.Ended)
}

func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 700 * time.Millisecond
	r, _, _ := drainMatch(t, engine.Config{})
	begun := time.Now()
	drain(t, r, engine.DrainConfig{Deadline: deadline})
	testkit.Eventually(t, "it ends", r.Ended)
	if took := time.Since(begun); took < deadline-10*time.Millisecond {
		t.Errorf("it ended after %v", took)
	}
	if n := r.Stats().Allocations; n != 2 {
		t.Errorf("%d allocations at the deadline", n)
	}
}

// TestDrainThreshold: it ends when no more than so many are left.
func TestDrainThreshold(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	q := drainJoin(t, r, "q", host)
	drain(t, r, engine.DrainConfig{Deadline: time.Hour, Threshold: 1})
	closes(q)
	testkit.Eventually(t, "one has left", func() bool { return r.Stats().Allocations == 2 })
	host.Send(p.Cred.ID, "still here")
	testkit.Eventually(t, "the others play on", p.HasReceived(host.Cred.ID, "still here"))
	if r.Ended() {
		t.Fatal("it ended with two left")
	}
	closes(p)
	testkit.Eventually(t, "it ends with one left", r.Ended)
}

// TestUndrain: it takes hosts again, and neither deadline nor emptiness ends it.
// A second drain replaces what the first one said.
func TestUndrain(t *testing.T) {
	t.Parallel()
	r, host, p := drainMatch(t, engine.Config{})
	const first = 5 * time.Second // long enough that a busy machine gets to the second
	over := time.After(first + 100*time.Millisecond)
	drain(t, r, engine.DrainConfig{Deadline: first})
	drain(t, r, engine.DrainConfig{Deadline: time.Hour})
	if err := reserveHost(r); !errors.Is(err, alloc.ErrDraining) {
		t.Errorf("a host while it drains: %v", err)
	}
	if err := r.Undrain(context.Background()); err != nil || r.Stats().Draining {
		t.Errorf("Undrain: %v, drains: %v", err, r.Stats().Draining)
	}
	closes(host)
	closes(p)
	testkit.Eventually(t, "all have left", func() bool { return r.Stats().Allocations == 0 })
	<-over
	if r.Ended() {
		t.Fatal("it ended although it does not drain")
	}
	if err := reserveHost(r); err != nil {
		t.Errorf("a host afterwards: %v", err)
	}
}

func TestDrainNeverRan(t *testing.T) {
	srv := newServer(t, engine.Config{})
	srv.Close()
	if err := srv.Drain(context.Background(), engine.DrainConfig{}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Drain: %v", err)
	}
	if err := srv.Undrain(context.Background()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("Undrain: %v", err)
	}
}

type received struct {
	mu     sync.Mutex
	events []string
}

func (h *received) hooks() engine.Hooks {
	return engine.Hooks{
		OnEnd:        func(e engine.EndEvent) { h.add("end", e.ID, e.Role, e.Reason) },
		OnDisconnect: func(e engine.DisconnectEvent) { h.add("disconnect", e.From, e.To) },
		OnReturn:     func(e engine.ReserveEvent) { h.add("return", e.ID, e.Tenant, e.MaxConnections) },
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

// TestEnd: a host that the operator closes gets nothing at once, ERROR 3 for
// what it sends and ERROR 4 for its BIND; its player learns by ERROR 5.
func TestEnd(t *testing.T) {
	t.Parallel()
	var events received
	r, host, p := drainMatch(t, engine.Config{Hooks: events.hooks()})
	id := proto.AllocationID(host.Cred.ID)
	host.Send(p.Cred.ID, "welcome") // An endpoint that sent nothing but a BIND is events nothing.
	testkit.Eventually(t, "the player receives", p.HasReceived(host.Cred.ID, "welcome"))
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

// TestKick: the other player plays on, and the kicked one comes back with another allocation only.
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
	testkit.Eventually(t, "the host forgets the kicked player", host.HasPeers(1))
	testkit.Eventually(t, "the kicked player forgets the host", p.HasPeers(0))
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

// TestEndedDoesNotComeBack: an allocation that was ended or kicked does not come back after a kill,
// nor does one that is ended before it came back. The hook reports hosts
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

// TestEndWithoutAFile: without a file of earlier allocations, one that is ended before it
// came back stays out as well, although nothing is known of it.
func TestEndWithoutAFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{})
	late, host := s.play(enginetest.UTP2, s.relay.Host("late", 2)), s.play(enginetest.UTP2, s.relay.Host("host", 2))
	pause(true, late, host)
	s.restart("file lost")
	if err := s.relay.End(t.Context(), late.Cred.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("End: %v", err)
	}
	if err := s.relay.Kick(t.Context(), proto.AllocationID{1}); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("Kick of one that never was: %v", err)
	}
	pause(false, late, host)
	testkit.Eventually(t, "it stays out", late.HasLogged("error 4"))
	testkit.Eventually(t, "the other one comes back", func() bool { return s.relay.Stats().Bound == 1 })
}

// TestCaptureGivenUp: a capture whose caller has gone before it began does not stay.
func TestCaptureGivenUp(t *testing.T) {
	t.Parallel()
	r := enginetest.Start(t, engine.Config{Timeouts: engine.Timeouts{Bind: time.Hour}})
	id := r.Host("h", 3).ID
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	each := func(*privateapi.Captured) error { return nil }
	for range 100 {
		if _, err := r.Private().Capture(gone, id, each); errors.Is(err, privateapi.ErrCapture) {
			t.Fatal("an earlier capture stays: ", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := r.Private().Capture(ctx, id, each); errors.Is(err, privateapi.ErrCapture) {
		t.Error(err)
	}
}
