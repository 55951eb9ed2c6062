package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/google/uuid"
)

type distant struct {
	has   map[proto.AllocationID]error // nil: what is asked is done
	fail  error
	hangs bool
	fresh bool // it has no state file, and accepts every client that comes back
	asked *atomic.Int64
	done  *atomic.Int64 // what was there, and is no more
}

func (d distant) Drain(context.Context, engine.DrainConfig) (operator.DrainState, error) {
	return operator.DrainState{Draining: d.fail == nil}, d.fail
}

func (d distant) Undrain(context.Context) (operator.DrainState, error) {
	return operator.DrainState{}, d.fail
}

func (d distant) Page(context.Context, string) (operator.Page, error) {
	return operator.Page{}, d.fail
}

func (d distant) Kick(ctx context.Context, id proto.AllocationID) (bool, error) {
	return d.Close(ctx, id)
}

func (d distant) Close(ctx context.Context, id proto.AllocationID) (bool, error) {
	d.asked.Add(1)
	if d.hangs {
		<-ctx.Done()
		return false, fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
	if err, ok := d.has[id]; ok {
		if err == nil {
			d.done.Add(1)
		}
		return err == nil, err
	}
	if d.fail != nil || d.fresh {
		return false, d.fail
	}
	return false, fmt.Errorf("%w: the relay says", alloc.ErrNotFound)
}

func candidates(relays map[byte]distant, dead byte) (all []placement.Candidate) {
	for b := range relays {
		n := placement.Candidate{Seen: placement.Seen{Node: placement.Node{Relay: alloc.RelayID{b}, Region: "region"}}}
		if b == dead {
			n.Age = placement.DeadAfter + time.Second
		}
		all = append(all, n)
	}
	return all
}

// TestOnRelayOf: an allocation is found on its relay, and an unknown one is reported
// as not found only if every relay has answered.
func TestOnRelayOf(t *testing.T) {
	t.Parallel()
	host, player, unknown := proto.AllocationID{1}, proto.AllocationID{2}, proto.AllocationID{3}
	silence := fmt.Errorf("%w: silence", alloc.ErrUnavailable)
	good := map[proto.AllocationID]error{host: fmt.Errorf("far away: %w", engine.ErrKickHost), player: nil}
	unread := fmt.Errorf("unread: %w", alloc.ErrUnavailable)
	for _, c := range []struct {
		name   string
		relays map[byte]distant // by the first byte of the id
		dead   byte
		home   byte
		ready  error
		id     proto.AllocationID
		want   error
		says   string
		asked  int
	}{
		{"a player at one of two", map[byte]distant{1: {}, 2: {has: good}}, 0, 0, nil, player, nil, "", 2},
		{"a player, and another is silent", map[byte]distant{1: {fail: silence}, 2: {has: good}}, 0, 0, nil, player, nil, "", 2},
		{"a player, and another hangs", map[byte]distant{1: {hangs: true}, 2: {has: good}}, 0, 0, nil, player, nil, "", 2},
		{"a host by its home", map[byte]distant{1: {}, 2: {has: good}}, 0, 2, nil, host, engine.ErrKickHost, "", 1},
		{"a host whose home is not known", map[byte]distant{1: {}, 2: {has: good}}, 0, 0, nil, host, engine.ErrKickHost, "", 2},
		{"a home that says no", map[byte]distant{1: {}, 2: {has: good}}, 0, 1, nil, player, alloc.ErrNotFound, "", 1},
		{"a home that is silent", map[byte]distant{1: {fail: silence}, 2: {has: good}}, 0, 1, nil, player, alloc.ErrUnavailable, "silence", 1},
		{"a home that is not there", map[byte]distant{1: {}}, 0, 9, nil, player, alloc.ErrUnavailable, "09000000", 0},
		{"no relay has it", map[byte]distant{1: {}, 2: {has: good}}, 0, 0, nil, unknown, alloc.ErrNotFound, "", 2},
		{"no relay has it, and one is silent", map[byte]distant{1: {fail: silence}, 2: {has: good}}, 0, 0, nil, unknown, alloc.ErrUnavailable,
			"01000000-0000-0000-0000-000000000000 region: silence", 2},
		{"no relay has it, and one is dead", map[byte]distant{1: {}, 2: {has: good}}, 1, 0, nil, unknown, alloc.ErrUnavailable,
			"1 of 2 relays do not have it", 1},
		{"no relay has it, and there may be more", map[byte]distant{1: {}}, 0, 0, unread, unknown, alloc.ErrUnavailable, "unread", 1},
		{"a player, and another cannot tell", map[byte]distant{1: {fresh: true}, 2: {has: good}}, 0, 0, nil, player, nil, "", 2},
		{"a host, and another cannot tell", map[byte]distant{1: {fresh: true}, 2: {has: good}}, 0, 0, nil, host, engine.ErrKickHost, "", 2},
		{"one that cannot come back", map[byte]distant{1: {fresh: true}, 2: {has: good}}, 0, 0, nil, unknown, nil, "", 2},
		{"one that cannot come back there", map[byte]distant{1: {fresh: true}, 2: {fail: silence}}, 0, 0, nil, unknown,
			alloc.ErrUnavailable, "silence", 2},
		{"a player at a relay that looks dead without the store", map[byte]distant{1: {}, 2: {has: good}}, 2, 0, unread, player, nil, "", 2},
		{"no relay", nil, 0, 0, nil, unknown, alloc.ErrNotFound, "", 0},
	} {
		var asked, done atomic.Int64
		r := fleetOperator{
			nodes: func() []placement.Candidate { return candidates(c.relays, c.dead) },
			ready: func() error { return c.ready },
			dial: func(n placement.Node) rpc.Operator {
				d := c.relays[n.Relay[0]]
				d.asked, d.done = &asked, &done
				return d
			},
			homeOf: func(context.Context, proto.AllocationID) (placement.Home, error) {
				if c.home == 0 {
					return placement.Home{}, alloc.ErrNotFound
				}
				return placement.Home{Relay: alloc.RelayID{c.home}}, nil
			},
		}
		err := r.Kick(t.Context(), c.id)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v, %q", c.name, err, c.want, c.says)
		}
		if got, want := done.Load() == 1, c.want == nil && c.id == player; got != want {
			t.Errorf("%s: it was done: %v", c.name, got)
		}
		if n := int(asked.Load()); n > c.asked || c.want != nil && n < c.asked {
			t.Errorf("%s: %d relays were asked, want %d", c.name, n, c.asked)
		}
	}
}

// TestManyRelays: no more are asked at once than may be, and no more are named.
func TestManyRelays(t *testing.T) {
	t.Parallel()
	const relays = 1000
	var now, most, asked atomic.Int64
	r := fleetOperator{
		nodes: func() []placement.Candidate {
			all := make([]placement.Candidate, relays)
			for i := range all {
				all[i].Relay = alloc.RelayID{byte(i), byte(i >> 8), 1}
			}
			return all
		},
		dial: func(placement.Node) rpc.Operator {
			for n := now.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(time.Millisecond)
			now.Add(-1)
			return distant{fail: alloc.ErrUnavailable, asked: &asked}
		},
		ready: func() error { return nil },
		homeOf: func(context.Context, proto.AllocationID) (placement.Home, error) {
			return placement.Home{}, alloc.ErrUnavailable
		},
	}
	err := r.End(t.Context(), proto.AllocationID{1})
	if !errors.Is(err, alloc.ErrUnavailable) || strings.Count(err.Error(), "\n") != maxNamed+2 || !strings.Contains(err.Error(), "0 of 1000") {
		t.Errorf("%v", err)
	}
	if most.Load() > askAtOnce || asked.Load() != relays {
		t.Errorf("%d relays were asked, %d at once", asked.Load(), most.Load())
	}
}

// TestFleetOperator: an operator of an API process drains, kicks and closes at a
// relay that is another process, and sees it.
func TestFleetOperator(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	o.Config.BindTimeout = time.Hour
	eu, us, a := start(t, o), k.relay(2, "us"), k.api()
	testkit.Within(t, time.Minute, "both relays", func() bool { return len(a.frontEnd.fleet.Nodes()) == 2 })
	host, code := hostIn(t, a, "eu")
	joiner, err := a.caller(secret).Join(t.Context(), code)
	if err != nil {
		t.Fatal(err)
	}
	r, id := a.frontEnd.operator(), alloc.RelayID{1}.String()
	st, err := r.Drain(t.Context(), id, engine.DrainConfig{Deadline: -1, Threshold: -1})
	if err != nil || !st.Draining || st.Final || st.Allocations != 2 || time.Until(st.Deadline) > admin.DefaultDeadline ||
		time.Until(st.Deadline) < admin.DefaultDeadline/2 {
		t.Errorf("drain: %+v, %v", st, err)
	}
	if own := eu.relay.drain.DrainState(); !own.Draining || us.relay.drain.DrainState().Draining {
		t.Errorf("eu %+v, us %+v", own, us.relay.drain.DrainState())
	}
	state := func() string {
		nodes, err := a.operator.status.nodes(t.Context(), operator.Load{})
		if err != nil || len(nodes.Nodes) != 3 {
			return fmt.Sprint(err, nodes)
		}
		return nodes.Nodes[1].State + " " + nodes.Nodes[2].State
	}
	testkit.Within(t, time.Minute, "the drain to be seen", func() bool { return state() == "draining ready" })
	if st, err = r.Drain(t.Context(), id, engine.DrainConfig{Threshold: 1}); err != nil || st.Threshold != 1 || !st.Deadline.IsZero() {
		t.Errorf("another drain: %+v, %v", st, err)
	}
	if st, err = r.Undrain(t.Context(), id); err != nil || st.Draining {
		t.Errorf("undrain: %+v, %v", st, err)
	}
	testkit.Within(t, time.Minute, "the end of the drain to be seen", func() bool { return state() == "ready ready" })

	page := a.pager(t)
	page("POST /nodes/01000000/drain", http.StatusOK, `{"node":"`+id+`","draining":true,"final":false,"deadline":"`)
	page("DELETE /nodes/"+id+"/drain", http.StatusOK, `{"node":"`+id+`","draining":false,`)
	page("POST /nodes/0300/drain", http.StatusNotFound, id)
	page("POST /drain", http.StatusConflict, "API process")

	hostID, playerID := allocationID(t, host.AllocationID), allocationID(t, joiner.AllocationID)
	if err := r.Kick(t.Context(), hostID); err != engine.ErrKickHost {
		t.Errorf("a host is kicked: %v", err)
	}
	page("POST /allocations/"+playerID.String()+"/kick", http.StatusOK, `"done":"kicked"`)
	page("DELETE /allocations/"+hostID.String(), http.StatusOK, `"done":"closed"`)
	for _, id := range []proto.AllocationID{hostID, playerID} {
		testkit.NoProblemWithin(t, time.Minute, "what has ended is not found", func() string {
			if err := r.End(t.Context(), id); err != alloc.ErrNotFound { // A busy relay may not answer in time.
				return fmt.Sprint(err)
			}
			return ""
		})
	}
	if n := eu.Stats().Allocations; n != 0 {
		t.Errorf("%d allocations are left", n)
	}
	if _, err := r.Undrain(t.Context(), alloc.RelayID{9}.String()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("no such relay: %v", err)
	}
}

func (r running) pager(t *testing.T) func(request string, status int, want string) {
	return func(request string, status int, want string) {
		t.Helper()
		method, path, _ := strings.Cut(request, " ")
		if code, body := r.operate(t, method, path); code != status || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %d %s", request, code, body, status, want)
		}
	}
}

// TestFleetPages: an API process shows what is at a relay that is another
// process, and finds hosts.
func TestFleetPages(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	o.Config.BindTimeout = time.Hour
	start(t, o)
	k.relay(2, "us")
	a := k.api()
	testkit.Within(t, time.Minute, "both relays", func() bool { return len(a.frontEnd.fleet.Nodes()) == 2 })
	host, code := hostIn(t, a, "eu")
	joiner, err := a.caller(secret).Join(t.Context(), code)
	if err != nil {
		t.Fatal(err)
	}
	hostID, playerID := allocationID(t, host.AllocationID), allocationID(t, joiner.AllocationID)
	page := a.pager(t)
	page("GET /nodes/0100/allocations?role=host", http.StatusOK, `{"allocations":[{"id":"`+hostID.String()+`","role":"host"`)
	page("GET /nodes/0200/allocations", http.StatusOK, `{"allocations":[],`)
	page("GET /nodes/0100/usage", http.StatusOK, `"hosts":1`)
	page("GET /nodes/0100/metrics", http.StatusNotFound, "404")
	page("GET /allocations/"+hostID.String()+"/players", http.StatusOK, `{"allocations":[{"id":"`+playerID.String()+`"`)
	page("GET /allocations/"+playerID.String(), http.StatusNotFound, "name the relay")
	page("GET /allocations", http.StatusConflict, "API process")
	page("GET /matches?q="+code, http.StatusOK, `"join_code":"`+code+`"`)
	page("GET /matches?q="+playerID.String(), http.StatusOK, `"relay":"01000000-`)
	page("GET /why/"+code, http.StatusOK, `"players":[{"id":"`+playerID.String()+`","player":"token-`)
	page("GET /why/"+playerID.String(), http.StatusOK, "no BIND has arrived")
	page("GET /nodes/0100/why/"+hostID.String(), http.StatusOK, "no BIND has arrived")
	page("GET /why/NEVERMADE", http.StatusNotFound, "no relay of the fleet knows")
	if _, err := a.caller(secret).Join(t.Context(), "7BCDFG"); err == nil {
		t.Error("an unknown code was accepted")
	}
	page("GET /timeline?project=game", http.StatusOK, `"what":"call refused","reason":"join: 404`)
	page("GET /timeline?project=game", http.StatusOK, `"id":"`+playerID.String()+`","relay":"01000000-`)
	page("GET /timeline?project=game&limit=1", http.StatusOK, `{"project":"game","events":[{"what":"call refused"`)
	page("GET /nodes/0100/timeline?project=game", http.StatusOK, `"what":"reserved","peer":"`+hostID.String()+`"`)
	page("GET /timeline?project=other", http.StatusOK, `{"project":"other","events":[]}`)
	page("GET /timeline", http.StatusBadRequest, "project is missing")
	page("GET /docs/", http.StatusOK, "<title>Ferry</title>")
	page("GET /docs/unity.html", http.StatusOK, "Netcode for Entities")
	page("GET /console/", http.StatusOK, "<!doctype html>")
}

// TestFleetFinalDrain: a drain that a signal began cannot be undone through the
// cluster either, and a relay that has run dry ends as it would by itself.
func TestFleetFinalDrain(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	o.Config.BindTimeout, o.Config.DrainTimeout = time.Hour, time.Hour
	relay, a := start(t, o), k.api()
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
	hostIn(t, a, "")
	if err := relay.relay.drain.DrainFinally(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, id := a.frontEnd.operator(), alloc.RelayID{1}.String()
	if _, err := r.Undrain(t.Context(), id); err != operator.ErrFinal {
		t.Errorf("undone: %v", err)
	}
	if st, err := r.Drain(t.Context(), id, engine.DrainConfig{Deadline: -1, Threshold: 1}); err != nil || !st.Final || st.Allocations != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := <-relay.ended; err != nil {
		t.Errorf("the relay ended with %v", err)
	}
}

// TestFleetFreshRelay: a relay without a state file accepts every client that comes back,
// and so takes any id. A player at another one is kicked all the same.
func TestFleetFreshRelay(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o, fresh := k.relayOptions(1, "eu"), k.relayOptions(2, "us")
	o.Config.BindTimeout, fresh.Fresh = time.Hour, false
	relay, _, a := start(t, o), start(t, fresh), k.api()
	testkit.Within(t, time.Minute, "both relays", func() bool { return len(a.frontEnd.fleet.Nodes()) == 2 })
	_, code := hostIn(t, a, "eu")
	for range 8 { // Or the right relay may have been asked first by chance.
		joiner, err := a.caller(secret).Join(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.frontEnd.operator().Kick(t.Context(), allocationID(t, joiner.AllocationID)); err != nil {
			t.Error(err)
		}
		if n := relay.Stats().Allocations; n != 1 {
			t.Fatalf("%d allocations are left, want the host", n)
		}
	}
}

func allocationID(t *testing.T, text string) proto.AllocationID {
	t.Helper()
	id, err := uuid.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return proto.AllocationID(id)
}
