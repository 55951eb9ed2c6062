package engine

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

func newPlayerRig(t *testing.T, l PlayerLimits) *rig {
	t.Helper()
	r := newRig(t, Config{})
	r.control.players.limits = l.withDefaults(alloc.DefaultMaxConnections, false)
	return r
}

func (r *rig) wantHost(player string, most int, want error) *mReservation {
	r.t.Helper()
	card, err := r.reserve(alloc.RoleHost, nil, player, most)
	if !errors.Is(err, want) || want == nil && err != nil {
		r.t.Fatalf("a host for %d of %s: %v, want %v", most, player, err, want)
	}
	return r.bindNew(card, err)
}

func (r *rig) bindNew(card *mReservation, err error) *mReservation {
	r.t.Helper()
	if err == nil {
		r.bind(card, udpN(1000+r.live()+len(r.ended)), 1)
	}
	return card
}

func (r *rig) wantJoiner(player string, host *mReservation, want error) *mReservation {
	r.t.Helper()
	card, err := r.reserve(alloc.RoleJoiner, host, player, 0)
	if !errors.Is(err, want) || want == nil && err != nil {
		r.t.Fatalf("a joiner of %s: %v, want %v", player, err, want)
	}
	return r.bindNew(card, err)
}

func TestPlayerLimits(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{})
	var events []privateapi.PlayerLimitEvent
	r.control.hooks.Private.OnPlayerLimit = func(e privateapi.PlayerLimitEvent) { events = append(events, e) }
	var last, joiner *mReservation
	for range 4 {
		last = r.wantHost("ann", 100, nil)
	}
	r.wantHost("ann", 1, alloc.ErrPlayerLimit)
	r.wantHost("bert", 100, nil)
	other := r.wantHost("carl", 100, nil)
	for _, host := range []*mReservation{other, last} {
		for range 4 {
			joiner = r.wantJoiner("ann", host, nil)
		}
	}
	r.wantJoiner("ann", last, alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners_per_host"})
	third := r.wantHost("carl", 100, nil)
	r.wantJoiner("ann", third, alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners"})
	if n := r.live(); n != 4+1+2+8 {
		t.Errorf("%d are alive: one ended that is in use", n)
	}
	r.control.end(r.entry(last).Handle, EndClosed)
	next := r.wantHost("ann", 1, nil)
	r.wantHost("ann", 1, alloc.ErrPlayerLimit)
	var counted [numPlayerLimits]uint64
	for l := range counted {
		counted[l] = r.control.players.refused[l].Load()
	}
	if want := [numPlayerLimits]uint64{playerHosts: 2, playerJoiners: 1, playerJoinersPerHost: 1}; counted != want {
		t.Errorf("%v are counted as refused, want %v", counted, want)
	}
	id := func(m *mReservation) proto.AllocationID { return proto.AllocationID(m.id) }
	if want := []privateapi.PlayerLimitEvent{
		{Limit: "hosts", Newest: id(last)}, {Limit: "joiners_per_host", Newest: id(joiner), Host: id(last)},
		{Limit: "joiners", Newest: id(joiner), Host: id(third)},
		{Limit: "hosts", Newest: id(next)},
	}; !slices.Equal(events, want) {
		t.Errorf("reported %v, want %v", events, want)
	}
}

func TestPlayerSeats(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{Hosts: -1, Seats: 20})
	r.wantHost("ann", 20, alloc.ErrPlayerLimit)
	r.wantHost("ann", 9, nil)
	r.wantHost("ann", 10, alloc.ErrPlayerLimit)
	r.wantHost("ann", 9, nil)
	r.wantHost("ann", 1, alloc.ErrPlayerLimit)
}

// TestPlayerOfMany: the callers of a static or a server token may be many people.
func TestPlayerOfMany(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{Hosts: 1})
	r.many = true
	r.wantHost("backend", 100, nil)
	r.wantHost("backend", 100, nil)
}

// TestPlayerReplaces: for one host too many, the player's own one that was silent for longest
// ends once it was silent for 10 s, and no host of another player does.
func TestPlayerReplaces(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{Hosts: 2})
	first, second := r.host(udpN(1), 5), r.host(udpN(2), 5) // of the player "host"
	other := r.wantHost("other", 5, nil)
	r.advance(5 * time.Second)
	r.feed(udpN(1), pingMessage(first.id))
	r.advance(5 * time.Second)
	r.wantHost("host", 5, alloc.ErrPlayerLimit)
	r.advance(250 * time.Millisecond)
	r.wantHost("host", 5, nil)
	if r.entry(second).Handle != 0 || r.entry(first).Handle == 0 || r.entry(other).Handle == 0 {
		t.Error("not the player's own host that was silent for longest has ended")
	}
	if n := len(r.ended); n != 1 || r.ended[0].Reason != EndReplaced {
		t.Errorf("ended: %+v", r.ended)
	}
	r.closed = map[endpoint.Endpoint]bool{udpN(1): true}
	r.wantHost("host", 5, nil) // Its session is closed: no client is there.
	r.wantHost("host", 5, alloc.ErrPlayerLimit)
}

func TestPlayerReplacesNone(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{Seats: 12})
	r.host(udpN(1), 5)
	live := r.host(udpN(2), 5)
	r.advance(11 * time.Second)
	r.feed(udpN(2), pingMessage(live.id))
	r.wantHost("host", 6, alloc.ErrPlayerLimit)
	if len(r.ended) != 0 {
		t.Errorf("ended for nothing: %+v", r.ended)
	}
	r.wantHost("host", 5, nil)
}

// TestPlayerAfterARestart: allocations that come back count again, and none is refused, even
// above a limit that is lower than before. Those of a shared name count for no player, as before.
func TestPlayerAfterARestart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, many bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
		r := newPlayerRig(t, PlayerLimits{})
		r.many = c.many
		r.restart(true) // The run before wrote no file.
		var hosts []*mReservation
		for i := range 3 {
			hosts = append(hosts, r.host(udpN(i+1), 5))
		}
		r.restart(c.file)
		r.control.players.limits = PlayerLimits{Hosts: 2}.withDefaults(alloc.DefaultMaxConnections, false)
		for i, h := range hosts {
			r.bind(h, udpN(i+1), 2)
			if r.entry(h).Handle == 0 {
				t.Fatalf("%+v: host %d did not come back", c, i)
			}
		}
		want, counted := alloc.ErrPlayerLimit, playerUse{hosts: 3, seats: 18}
		if c.many {
			want, counted = nil, playerUse{}
		}
		r.wantHost("host", 5, want)
		u := r.control.players.byPlayer[alloc.HashPlayer(alloc.Tenant{Project: "p"}, "host")]
		if u.hosts != counted.hosts || u.seats != counted.seats {
			t.Errorf("%+v: %+v", c, u)
		}
	}
}

func TestPlayersAreForgotten(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{})
	host := r.host(udpN(1), 5)
	a, b := r.unlinkedOf("ann", udpN(2), host), r.unlinkedOf("ann", udpN(3), host)
	c := r.unlinkedOf("ann", udpN(4), host)
	for _, card := range []*mReservation{b, a, c, host} {
		r.control.end(r.entry(card).Handle, EndClosed)
	}
	if n := len(r.control.players.byPlayer); n != 0 {
		t.Errorf("%d players are left", n)
	}
}

// TestSessionRoom: a reservation is refused while its player could have no session, so that it
// does not meet silence.
func TestSessionRoom(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{})
	host := r.host(udpN(1), 5)
	records := &fakeRecords{full: true}
	r.control.records = records
	if _, err := r.reserve(alloc.RoleJoiner, host, "ann", 0); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("a joiner: %v, want ErrFull", err)
	}
	r.wantHost("ann", 1, alloc.ErrFull)
	if n := r.control.players.noSession.Load(); n != 2 {
		t.Errorf("%d are counted, want 2", n)
	}
	records.full = false
	if _, err := r.reserve(alloc.RoleJoiner, host, "ann", 0); err != nil {
		t.Error(err)
	}
	owner, ok := (&recordsRelay{control: r.control, shared: r.shared}).OwnerOf(proto.AllocationID(host.id))
	if want := ownerOf(alloc.Tenant{Project: "p"}.Hash(), alloc.HashPlayer(alloc.Tenant{Project: "p"}, "host"), true,
		proto.AllocationID{}); !ok || owner != want {
		t.Errorf("the host is of %+v, want %+v", owner, want)
	}
}

// TestPlayerJoinersPerHost: one player does not take all places of a host. Its own one at that host
// that was silent for longest yields, and none at another host does.
func TestPlayerJoinersPerHost(t *testing.T) {
	t.Parallel()
	refused := alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners_per_host"}
	r := newPlayerRig(t, PlayerLimits{JoinersPerHost: 2})
	host, other := r.host(udpN(1), 8), r.host(udpN(2), 8)
	elsewhere := r.unlinkedOf("ann", udpN(3), other)
	first := r.unlinkedOf("ann", udpN(4), host)
	second := r.unlinkedOf("ann", udpN(5), host)
	r.link(elsewhere, udpN(3))
	r.link(second, udpN(5))
	r.wantJoiner("ann", host, refused)
	r.wantJoiner("bert", host, nil)
	// Two fall silent and live on, since they receive; the one at the other host is older.
	r.each(time.Second, 10*time.Second, func(int) {
		r.feed(udpN(1), relayMessage(host.id, second.id, 10))
		r.feed(udpN(2), relayMessage(other.id, elsewhere.id, 10))
		r.feed(udpN(4), pingMessage(first.id))
		r.wantJoiner("ann", host, refused)
	})
	r.advance(250 * time.Millisecond)
	r.wantJoiner("ann", host, nil)
	if r.entry(second).Handle != 0 || r.entry(first).Handle == 0 || r.entry(elsewhere).Handle == 0 {
		t.Errorf("not its own silent one at the host has ended: %+v", r.ended)
	}
	r.wantJoiner("ann", host, refused)
	if n := r.counted(outRejected); n != 0 {
		t.Errorf("%d REJECTED were sent", n)
	}
	r.many = true // the holders of a static token
	for range 6 {
		r.wantJoiner("token", host, nil)
	}
}

// TestPlayerJoinersAfterARestart: joiners that come back count again at their host, and all do,
// above the limit as well.
func TestPlayerJoinersAfterARestart(t *testing.T) {
	t.Parallel()
	for _, file := range []bool{true, false} {
		r := newPlayerRig(t, PlayerLimits{})
		r.restart(true) // The run before wrote no file.
		host := r.host(udpN(1), 8)
		var joiners []*mReservation
		for i := range 3 {
			joiners = append(joiners, r.unlinkedOf("ann", udpN(i+2), host))
		}
		r.restart(file)
		r.control.players.limits = PlayerLimits{JoinersPerHost: 2}.withDefaults(alloc.DefaultMaxConnections, false)
		r.bind(host, udpN(1), 2)
		r.wantJoiner("ann", host, nil)
		for i, j := range joiners {
			r.bind(j, udpN(i+2), 2)
		}
		r.wantJoiner("ann", host, alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "joiners_per_host"})
	}
}

// TestPlayerRetries: a player that reserves each second and does not bind, as its game does that
// cannot reach the relay, is not refused: its own oldest unbound reservation ends.
func TestPlayerRetries(t *testing.T) {
	t.Parallel()
	r := newPlayerRig(t, PlayerLimits{})
	host := r.host(udpN(1), 8)
	bound := r.unlinkedOf("ann", udpN(2), host)
	var joins, hosts []*mReservation
	r.each(time.Second, 9*time.Second, func(i int) {
		r.feed(udpN(1), pingMessage(host.id))
		r.feed(udpN(2), pingMessage(bound.id))
		for role, all := range map[alloc.Role]*[]*mReservation{alloc.RoleHost: &hosts, alloc.RoleJoiner: &joins} {
			of := map[alloc.Role]*mReservation{alloc.RoleJoiner: host}[role]
			card, err := r.reserve(role, of, "ann", 1)
			if err != nil {
				t.Fatalf("%v %d: %v", role, i, err)
			}
			*all = append(*all, card)
		}
	})
	for what, all := range map[int][]*mReservation{4: hosts, 3: joins} {
		for i, card := range all {
			if alive := r.entry(card).Handle != 0; alive != (i >= len(all)-what) {
				t.Errorf("%s %d of %d: alive is %v", card.role, i, len(all), alive)
			}
		}
	}
	if r.entry(bound).Handle == 0 {
		t.Error("the one that plays has ended")
	}
	r.bind(joins[len(joins)-1], udpN(3), 1)
}
