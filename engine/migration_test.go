package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

type migrationRig struct {
	*rig
	host     *mReservation
	players  []*mReservation
	migrated []MigrateEvent
	over     []proto.AllocationID
	codes    []privateapi.CodeEvent
}

// newMigrationRig returns a match with so many players, the last of which has no link. The host
// is at endpoint 0, and the players are at the next ones.
func newMigrationRig(t *testing.T, players int) *migrationRig {
	r := &migrationRig{}
	r.rig = newRig(t, Config{HostMigration: HostMigration{Window: time.Minute}, Hooks: Hooks{
		OnMigrate:      func(e MigrateEvent) { r.migrated = append(r.migrated, e) },
		OnMigrationEnd: func(host proto.AllocationID) { r.over = append(r.over, host) },
		Private:        privateapi.Hooks{OnCode: func(e privateapi.CodeEvent) { r.codes = append(r.codes, e) }},
	}})
	r.host = r.rig.host(udpN(0), 20)
	for i := range players {
		r.players = append(r.players, r.joiner(udpN(i+1), r.host))
	}
	r.players = append(r.players, r.unlinked(udpN(players+1), r.host))
	return r
}

func (r *migrationRig) stay(d time.Duration, host bool) {
	r.each(250*time.Millisecond, d, func(int) {
		for i, p := range r.players {
			r.feed(udpN(i+1), pingMessage(p.id))
		}
		if host {
			r.feed(udpN(0), pingMessage(r.host.id))
		}
	})
	r.take()
}

func (r *migrationRig) fromHost(pkt []byte)          { r.feed(udpN(0), pkt) }
func (r *migrationRig) fromPlayer(i int, pkt []byte) { r.feed(udpN(i+1), pkt) }

func (r *migrationRig) ask(i int, host *mReservation) (*mReservation, error) {
	return r.migrate(r.players[i], host)
}

func (r *migrationRig) mustAsk(i int, host *mReservation) *mReservation {
	r.t.Helper()
	card, err := r.ask(i, host)
	if err != nil {
		r.t.Fatalf("player %d: %v", i, err)
	}
	return card
}

func (r *migrationRig) wantErrors(host *mReservation, want ...error) {
	r.t.Helper()
	for i, err := range want {
		if _, got := r.ask(i, host); !errors.Is(got, err) || err == nil && got != nil {
			r.t.Errorf("player %d: %v, want %v", i, got, err)
		}
	}
}

// wantEach ends each reservation, so that every player finds the place free.
func (r *migrationRig) wantEach(host *mReservation, want ...error) {
	r.t.Helper()
	for i, err := range want {
		if _, got := r.ask(i, host); !errors.Is(got, err) || err == nil && got != nil {
			r.t.Errorf("player %d: %v, want %v", i, got, err)
		}
		r.control.endCandidate(proto.AllocationID(host.id), EndSuperseded)
	}
}

func (r *migrationRig) wantGone(what string, card *mReservation, at endpoint.Endpoint) {
	r.t.Helper()
	r.take()
	r.feed(at, signed(card, 1, card.key))
	want := proto.Error{ID: proto.AllocationID(card.id), Code: proto.ErrorNotFound}.Append(nil)
	if sent := r.take(); len(sent) != 1 || !bytes.Equal(sent[0].pkt, want) {
		r.t.Errorf("the BIND of %s: sent %v, want ERROR 4", what, sent)
	}
}

// The ways in which a host leaves, and what each of three linked players and one without a link
// gets at once, 2 s later, and after the silence of the host.
var (
	waits   = alloc.ErrMigration
	none    = alloc.ErrNotFound
	present = alloc.ErrHostPresent
)

// TestMigrationDepartures has the host of three players leave in each way. The fourth has no
// link.
func TestMigrationDepartures(t *testing.T) {
	t.Parallel()
	disconnects := func(r *migrationRig, players ...int) {
		for _, i := range players {
			r.fromHost(message(9, r.host.id, r.players[i].id))
		}
	}
	disconnect := func(r *migrationRig, players ...int) {
		for _, i := range players {
			r.fromPlayer(i, message(9, r.players[i].id, r.host.id))
		}
	}
	for _, c := range []struct {
		name string
		do   func(r *migrationRig)
		goes bool // the host goes on sending
		now  []error
		late []error // after its silence
	}{
		{"a crash", func(*migrationRig) {}, false, []error{waits, waits, waits, none}, []error{nil, nil, nil, none}},
		{"CLOSE", func(r *migrationRig) { r.fromHost(message(11, r.host.id)) }, false, []error{nil, nil, nil, none},
			[]error{nil, nil, nil, none}},
		{"DISCONNECTs and CLOSE", func(r *migrationRig) {
			disconnects(r, 0, 1, 2)
			r.fromHost(message(11, r.host.id))
		}, false, []error{nil, nil, nil, none}, []error{nil, nil, nil, none}},
		{"NGO's Shutdown", func(r *migrationRig) { // Each player has DISCONNECTed by itself before.
			disconnect(r, 0, 1, 2)
			disconnects(r, 0, 1, 2)
		}, false, []error{waits, waits, waits, none}, []error{nil, nil, nil, none}},
		{"a driver that is disposed", func(r *migrationRig) { disconnect(r, 0, 1, 2) }, false, []error{waits, waits, waits, none},
			[]error{nil, nil, nil, none}},
		{"a plain end", func(r *migrationRig) { disconnects(r, 0, 1, 2) }, false, []error{waits, waits, waits, none},
			[]error{nil, nil, nil, none}},
		{"a plain end within 2 s", func(r *migrationRig) {
			disconnects(r, 0)
			r.stay(1750*time.Millisecond, true)
			disconnects(r, 1, 2)
		}, false, []error{waits, waits, waits, none}, []error{nil, nil, nil, none}},
		{"a plain end whose last datagram is lost", func(r *migrationRig) { disconnects(r, 0, 1) }, false, []error{waits, waits, waits, none},
			[]error{nil, nil, nil, none}},
		{"a slow end", func(r *migrationRig) {
			disconnects(r, 0)
			r.stay(2500*time.Millisecond, true)
			disconnects(r, 1, 2)
		}, false, []error{none, waits, waits, none}, []error{none, nil, nil, none}},
		{"leave", func(r *migrationRig) { _ = r.leave(r.host) }, false, []error{nil, nil, nil, none}, []error{nil, nil, nil, none}},
		{"leave and Shutdown", func(r *migrationRig) {
			_ = r.leave(r.host)
			disconnect(r, 0)
			disconnects(r, 0, 1)
		}, true, []error{nil, nil, nil, none}, []error{nil, nil, nil, none}},
		{"leave of a host that removed a player", func(r *migrationRig) {
			disconnects(r, 0)
			_ = r.leave(r.host)
		}, false, []error{none, nil, nil, none}, []error{none, nil, nil, none}},
		{"a kick of one, by UTP", func(r *migrationRig) {
			disconnect(r, 0)
			disconnects(r, 0)
		}, true, []error{waits, waits, waits, none}, []error{none, waits, waits, none}},
		{"a kick of one and a crash", func(r *migrationRig) { disconnects(r, 0) }, false, []error{waits, waits, waits, none},
			[]error{none, nil, nil, none}},
		{"a kick of one and CLOSE", func(r *migrationRig) {
			disconnects(r, 0)
			r.fromHost(message(11, r.host.id))
		}, false, []error{none, nil, nil, none}, []error{none, nil, nil, none}},
		{"a player that leaves", func(r *migrationRig) { disconnect(r, 0) }, true, []error{waits, waits, waits, none},
			[]error{present, waits, waits, none}},
		{"an operator's end", func(r *migrationRig) {
			_ = r.control.endByID(proto.AllocationID(r.host.id), r.now)
		}, false, []error{none, none, none, none}, []error{none, none, none, none}},
		{"leave and an operator's end", func(r *migrationRig) {
			_ = r.leave(r.host)
			_ = r.control.endByID(proto.AllocationID(r.host.id), r.now)
		}, false, []error{none, none, none, none}, []error{none, none, none, none}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newMigrationRig(t, 3)
			r.stay(3*time.Second, true)
			c.do(r)
			r.wantEach(r.host, c.now...)
			r.stay(defaultSilence+250*time.Millisecond, c.goes)
			r.wantEach(r.host, c.late...)
		})
	}
}

// TestMigrationAfterTimeout: the players of a host that has crashed notice that after 30 s, and
// DISCONNECT by themselves, before or after the relay has ended the host.
func TestMigrationAfterTimeout(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{29 * time.Second, 32 * time.Second} {
		r := newMigrationRig(t, 2)
		r.each(250*time.Millisecond, after, func(int) {
			for i := range 2 {
				r.fromPlayer(i, relayMessage(r.players[i].id, r.host.id, 9))
			}
		})
		if live := r.entry(r.host).Handle != 0; live != (after < 30*time.Second) {
			t.Fatalf("after %v the host is live: %v", after, live)
		}
		for i := range 2 {
			r.fromPlayer(i, message(9, r.players[i].id, r.host.id))
		}
		r.mustAsk(0, r.host)
		r.wantErrors(r.host, nil, waits)
		if _, err := r.reserve(alloc.RoleJoiner, r.host, "new", 0); !errors.Is(err, waits) {
			t.Errorf("a join after %v: %v", after, err)
		}
	}
}

// TestMigrationTakeOver: one player at a time may bind, and then has the place and the code.
func TestMigrationTakeOver(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"CLOSE", "leave", "silence"} {
		t.Run(way, func(t *testing.T) {
			r := newMigrationRig(t, 6)
			r.stay(time.Second, true)
			switch way {
			case "CLOSE":
				r.fromHost(message(11, r.host.id))
			case "leave":
				if err := r.leave(r.host); err != nil {
					t.Fatal(err)
				}
				r.fromHost(relayMessage(r.host.id, r.players[0].id, 9))
				if sent := r.take(); len(sent) != 1 || sent[0].to != udpN(1) {
					t.Errorf("a host that leaves relays %v", sent)
				}
			default:
				r.stay(7250*time.Millisecond, false)
			}
			first := r.mustAsk(0, r.host)
			for i := 1; i < 6; i++ {
				_, err := r.ask(i, r.host)
				if wait, ok := errors.AsType[alloc.RefusedError](err); !ok || wait.RetryAfter != time.Second ||
					!strings.Contains(wait.Reason, "another player") {
					t.Errorf("player %d: %v", i, err)
				}
			}
			r.stay(2*time.Second+table250, false)
			card := r.mustAsk(2, r.host)
			r.wantGone("the reservation of a player that let its turn pass", first, udpN(60))
			r.take()
			r.feed(udpN(50), signed(card, 1, card.key))
			timeouts := 0
			for _, s := range r.take() {
				if s.to == udpN(0) && s.pkt[3] == 12 && s.pkt[20] == 1 {
					timeouts++
				}
			}
			if want := map[string]int{"silence": 1}[way]; timeouts != want {
				t.Errorf("the former host got %d ERROR 1, want %d", timeouts, want)
			}
			if r.entry(card).Endpoint != udpN(50) || r.entry(r.host).Handle != 0 {
				t.Fatal("no new host, or the former one is there")
			}
			newHost := proto.AllocationID(card.id)
			if len(r.migrated) != 1 || r.migrated[0].NewHost != newHost || r.migrated[0].Host != proto.AllocationID(r.host.id) ||
				r.migrated[0].Joiner != proto.AllocationID(r.players[2].id) || r.migrated[0].Code != "6789BC" {
				t.Errorf("reported %+v", r.migrated)
			}
			if len(r.codes) != 1 || r.codes[0] != (privateapi.CodeEvent{Host: newHost, Code: "6789BC"}) {
				t.Errorf("codes %+v", r.codes)
			}
			if i := slices.IndexFunc(r.ended, func(e EndEvent) bool { return e.ID == proto.AllocationID(r.host.id) }); i < 0 ||
				!r.ended[i].Migration {
				t.Errorf("ended %+v", r.ended)
			}
			for _, host := range []*mReservation{r.host, card} { // The code moves late.
				_, err := r.ask(0, host)
				if p, _ := errors.AsType[alloc.RefusedError](err); p.Host != newHost {
					t.Errorf("another player: %v", err)
				}
				r.wantErrors(host, present, present, present, present, present, present, none)
			}
			if _, err := r.reserve(alloc.RoleJoiner, r.host, "x", 0); !errors.Is(err, alloc.ErrMigration) {
				t.Errorf("a join by a code that has not moved: %v", err)
			}
			x, err := r.reserve(alloc.RoleJoiner, card, "x", 0)
			if err != nil {
				t.Fatal(err)
			}
			r.bind(x, udpN(70), 1)
			r.link(x, udpN(70))
			r.each(time.Second, 61*time.Second, func(int) { r.feed(udpN(50), pingMessage(card.id)) })
			if len(r.over) != 1 || r.over[0] != proto.AllocationID(r.host.id) || len(r.control.migrations.places)+
				len(r.control.migrations.running) != 0 {
				t.Errorf("over: %+v; left: %+v", r.over, r.control.migrations)
			}
			r.wantErrors(r.host, none)
		})
	}
}

const table250 = 250 * time.Millisecond

// TestMigrationAgain: a player that calls again has one reservation, the last, and no more time; one
// that does not bind yields after 2 s to a player that has had no turn, and after 10 s to any.
func TestMigrationAgain(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 6)
	r.fromHost(message(11, r.host.id))
	first := r.mustAsk(0, r.host)
	second := r.mustAsk(0, r.host)
	r.wantGone("the first one", first, udpN(60))
	r.stay(2*time.Second, false)
	r.wantErrors(r.host, nil, waits, waits)
	r.stay(table250, false)
	for i := 1; i < 5; i++ { // Each comes once, however often the one before asks.
		r.wantErrors(r.host, slices.Repeat([]error{waits}, i)[1:]...)
		r.mustAsk(i, r.host)
		for range 8 {
			r.mustAsk(i, r.host)
			r.wantErrors(r.host, waits)
			r.stay(table250, false)
		}
		r.stay(table250, false)
	}
	r.wantGone("a reservation that was replaced", second, udpN(61))
	last := r.mustAsk(5, r.host)
	for range 40 { // All have had their turns, so the last one has the time to bind.
		r.wantErrors(r.host, waits, waits, waits, waits, waits, nil)
		last = r.mustAsk(5, r.host)
		r.stay(table250, false)
	}
	r.stay(table250, false)
	r.wantErrors(r.host, nil, waits, waits)
	r.wantGone("the last reservation", last, udpN(62))
	r.bind(r.mustAsk(0, r.host), udpN(63), 1)
	r.wantErrors(r.host, present, present)
}

// TestMigrationSamePlayer: a player with several allocations is one candidate; the holders of a token
// that many share are many.
func TestMigrationSamePlayer(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{false, true} {
		r := newMigrationRig(t, 0)
		r.many = many
		r.players = nil
		for i := range 6 {
			r.players = append(r.players, r.unlinkedOf("ann", udpN(i+1), r.host))
			r.link(r.players[i], udpN(i+1))
			r.stay(time.Second, true)
		}
		r.fromHost(message(11, r.host.id))
		r.mustAsk(0, r.host)
		r.wantErrors(r.host, nil, map[bool]error{true: waits}[many])
	}
}

// TestMigrationUnbound: a reservation that is not bound in time ends, and the place is free.
func TestMigrationUnbound(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 5)
	r.fromHost(message(11, r.host.id))
	card := r.mustAsk(0, r.host)
	r.stay(10*time.Second+table250, false)
	r.wantGone("an expired reservation", card, udpN(60))
	if n := len(r.control.migrations.candidates) + len(r.control.migrations.places); n != 0 {
		t.Errorf("%d candidates are left", n)
	}
	r.bind(r.mustAsk(4, r.host), udpN(61), 1)
}

// TestMigrationJoin: a join to a host that has crashed succeeds until its silence counts, and again if it
// is back; a host that never had a player may be silent for longer.
func TestMigrationJoin(t *testing.T) {
	t.Parallel()
	for _, players := range []int{0, 1} {
		r := newMigrationRig(t, players)
		r.stay(time.Second, true)
		join := func(what string, want error) {
			t.Helper()
			if _, err := r.reserve(alloc.RoleJoiner, r.host, what, 0); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%d players, a join %s: %v, want %v", players, what, err, want)
			}
		}
		r.stay(defaultSilence-table250, false)
		join("in time", nil)
		r.stay(2*table250, false)
		join("late", map[int]error{1: waits}[players])
		r.fromHost(pingMessage(r.host.id))
		join("when it is back", nil)
	}
}

// TestMigrationReturn: a silent host that is heard again keeps its place from those that have a
// reservation and have not bound it.
func TestMigrationReturn(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 2)
	r.stay(7250*time.Millisecond, false)
	a := r.mustAsk(0, r.host)
	r.fromHost(pingMessage(r.host.id))
	r.wantGone("the candidate", a, udpN(50))
	if r.entry(r.host).Handle == 0 || r.entry(r.players[0]).Link == 0 {
		t.Error("the host has lost its match")
	}
	r.wantErrors(r.host, waits, waits, none)
	if _, err := r.reserve(alloc.RoleJoiner, r.host, "x", 0); err != nil {
		t.Errorf("a join: %v", err)
	}
}

// TestMigrationLeave: only a host's owner says that it leaves, and as often as it likes.
func TestMigrationLeave(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 1)
	other := *r.host
	other.player = "other"
	if err := r.leave(&other); !errors.Is(err, none) {
		t.Errorf("another player: %v", err)
	}
	if err := r.leave(r.players[0]); !errors.Is(err, none) {
		t.Errorf("a joiner: %v", err)
	}
	r.wantErrors(r.host, waits, none)
	for range 2 {
		if err := r.leave(r.host); err != nil {
			t.Error(err)
		}
		if err := r.leave(&other); !errors.Is(err, none) {
			t.Errorf("another player: %v", err)
		}
	}
	if _, err := r.reserve(alloc.RoleJoiner, r.host, "x", 0); !errors.Is(err, waits) {
		t.Errorf("a join: %v", err)
	}
	r.stay(2*time.Minute, true) // It is there, and its place is free.
	r.wantErrors(r.host, nil, none)
	r.fromHost(message(11, r.host.id))
	if err := r.leave(r.host); err != nil {
		t.Errorf("after CLOSE: %v", err)
	}
	r.stay(61*time.Second, false)
	if err := r.leave(r.host); !errors.Is(err, none) {
		t.Errorf("after the window: %v", err)
	}
	unbound, err := r.reserve(alloc.RoleHost, nil, "host", 4)
	if err != nil || r.leave(unbound) != nil || r.entry(unbound).Handle != 0 {
		t.Errorf("a host that was never bound: %v", err)
	}
}

// TestMigrationNeverBound: a host that no client has bound has no players.
func TestMigrationNeverBound(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 0)
	host, err := r.reserve(alloc.RoleHost, nil, "late", 4)
	if err != nil {
		t.Fatal(err)
	}
	p := r.unlinked(udpN(9), host)
	r.each(time.Second, 9*time.Second, func(int) { r.feed(udpN(9), pingMessage(p.id)) })
	if _, err := r.migrate(p, host); !errors.Is(err, none) {
		t.Errorf("before it ends: %v", err)
	}
	r.advance(2 * time.Second)
	if _, err := r.migrate(p, host); !errors.Is(err, none) {
		t.Errorf("after it: %v", err)
	}
}

// TestMigrationDrain: a migration is no new match.
func TestMigrationDrain(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 2)
	r.control.drain.active.Store(true)
	r.fromHost(message(11, r.host.id))
	if _, err := r.reserve(alloc.RoleHost, nil, "x", 4); !errors.Is(err, alloc.ErrDraining) {
		t.Fatalf("another host: %v", err)
	}
	r.bind(r.mustAsk(0, r.host), udpN(50), 1)
}

// TestMigrationPause: while the silence may be on our side, no host is silent.
func TestMigrationPause(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 1)
	r.now += 9000 // The relay stands still.
	r.pump()
	r.wantErrors(r.host, waits)
	r.stay(5*time.Second, false)
	r.wantErrors(r.host, waits)
	r.stay(3*time.Second, false)
	r.wantErrors(r.host, nil)

	r = newMigrationRig(t, 1)
	r.stay(8*time.Second, false)
	r.control.pause.begin(r.now)
	_, err := r.ask(0, r.host)
	if wait, ok := errors.AsType[alloc.RefusedError](err); !ok || !strings.Contains(wait.Reason, "many players") {
		t.Errorf("while expiry pauses: %v", err)
	}
}

// TestMigrationCode: the code of another match is of no use, and another player's ticket.
func TestMigrationCode(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 1)
	other := r.rig.host(udpN(80), 4)
	r.fromHost(message(11, r.host.id))
	r.wantErrors(other, none)
	r.feed(udpN(80), message(11, other.id))
	r.wantErrors(other, none)
	r.mustAsk(0, r.host)
	// A player whose allocation is gone is none.
	r.fromPlayer(0, message(11, r.players[0].id))
	r.wantErrors(r.host, none)
}

// TestMigrationSessionRoom: a candidate that could have no session is refused, as any reservation.
func TestMigrationSessionRoom(t *testing.T) {
	t.Parallel()
	r := newMigrationRig(t, 2)
	r.fromHost(message(11, r.host.id))
	records := &fakeRecords{full: true}
	r.control.records = records
	if _, err := r.ask(0, r.host); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	if n := r.control.players.noSession.Load(); n != 1 {
		t.Errorf("%d are counted, want 1", n)
	}
	records.full = false
	r.mustAsk(0, r.host)
}

// newLiveCrashRig has a relay with a state file; the last player has no link.
func newLiveCrashRig(t *testing.T, players int) *migrationRig {
	r := newMigrationRig(t, 0)
	r.restart(true)
	r.shared.rules.recoverUntil = 0 // There is no earlier run.
	r.control.recoverSome(r.now)
	r.host, r.players = r.rig.host(udpN(0), 20), nil
	for i := range players {
		r.players = append(r.players, r.joiner(udpN(i+1), r.host))
	}
	r.players = append(r.players, r.unlinked(udpN(players+1), r.host))
	return r
}

func newCrashRig(t *testing.T, players int) *migrationRig {
	r := newLiveCrashRig(t, players)
	r.fromHost(message(11, r.host.id))
	return r
}

// left counts the records of hosts whose places may be taken, in the state file.
func (r *migrationRig) left() (n int) {
	r.restart(true)
	for _, v := range r.control.migrations.running {
		if v.NewHost.IsZero() {
			n++
		}
	}
	return n
}

func (r *migrationRig) crash() {
	r.restart(true)
	for i, p := range r.players {
		r.feed(udpN(i+1), signed(p, 2, p.key))
	}
	r.take()
}

// TestCrashInMigration: after a crash of the relay the candidate may bind for 2 s, and the next one then.
func TestCrashInMigration(t *testing.T) {
	t.Parallel()
	for _, binds := range []bool{true, false} {
		r := newCrashRig(t, 3)
		card := r.mustAsk(0, r.host)
		r.crash()
		if n := r.control.seats.recoverable; n != 0 {
			t.Errorf("%d seats are kept", n)
		}
		r.wantErrors(r.host, waits, waits, waits, none)
		if !binds {
			r.stay(2*time.Second+table250, false)
			next := r.mustAsk(1, r.host)
			r.wantGone("a candidate that let its turn pass", card, udpN(40))
			card = next
		}
		r.bind(card, udpN(41), 2)
		r.wantErrors(r.host, present, present, present)
		r.wantErrors(card, present, present, present)
		if e := r.entry(card); r.control.shared.table.Account(e.Handle).MaxConnections != 20 && binds {
			t.Error("the new host has lost connections")
		}
		r.crash()
		r.wantErrors(card, alloc.ErrUnavailable, alloc.ErrUnavailable)
		r.feed(udpN(41), signed(card, 3, card.key))
		r.wantErrors(card, present, present, present)
	}
}

// TestCrashOfEarlierVersion: a candidate of an earlier version, whose record does not name its host, stays
// out, and none of its seats is kept.
func TestCrashOfEarlierVersion(t *testing.T) {
	t.Parallel()
	r := newLiveCrashRig(t, 1)
	left := previousRunOf(2)
	left.Records[0].Flags, left.Records[1].Flags = statefile.Host|statefile.Bound, statefile.Host|statefile.Candidate
	for i := range left.Records {
		left.Records[i].ID, _ = newID()
	}
	r.boot(left)
	if r.control.mayExist(left.Records[1].ID, r.now) || !r.control.mayExist(left.Records[0].ID, r.now) || r.control.seats.recoverable != 1 {
		t.Errorf("the candidate may come back, or the host may not; %d seats", r.control.seats.recoverable)
	}
}

// TestCrashAfterDeparture: the ways in which a host leaves, with a crash of the relay after it. The
// players have closed their transports, or bind again; the last one has no link.
func TestCrashAfterDeparture(t *testing.T) {
	t.Parallel()
	disconnects := func(r *migrationRig, players ...int) {
		for _, i := range players {
			r.fromHost(message(9, r.host.id, r.players[i].id))
		}
	}
	for _, c := range []struct {
		name string
		do   func(r *migrationRig)
		left bool // for the relay: else its silence decides
		want []error
	}{
		{"CLOSE", func(r *migrationRig) { r.fromHost(message(11, r.host.id)) }, true, []error{nil, nil, nil, none}},
		{"leave", func(r *migrationRig) { _ = r.leave(r.host) }, true, []error{nil, nil, nil, none}},
		{"leave and Shutdown", func(r *migrationRig) {
			_ = r.leave(r.host)
			r.fromPlayer(0, message(9, r.players[0].id, r.host.id))
			disconnects(r, 0, 1)
		}, true, []error{nil, nil, nil, none}},
		{"a kick of one and leave", func(r *migrationRig) {
			disconnects(r, 0)
			_ = r.leave(r.host)
		}, true, []error{none, nil, nil, none}},
		{"a crash", func(*migrationRig) {}, false, []error{nil, nil, nil, none}},
		{"a kick of one and a crash", func(r *migrationRig) { disconnects(r, 0) }, false, []error{none, nil, nil, none}},
		{"NGO's Shutdown", func(r *migrationRig) {
			for i := range 3 {
				r.fromPlayer(i, message(9, r.players[i].id, r.host.id))
			}
			disconnects(r, 0, 1, 2)
		}, false, []error{nil, nil, nil, none}},
		{"an operator's end", func(r *migrationRig) {
			_ = r.control.endByID(proto.AllocationID(r.host.id), r.now)
		}, true, []error{none, none, none, none}},
	} {
		for _, bound := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, players bind again %v", c.name, bound), func(t *testing.T) {
				r := newLiveCrashRig(t, 3)
				c.do(r)
				r.stay(table250, false)
				if r.crash(); !bound {
					r.restart(true)
				}
				if !c.left {
					for i, err := range c.want {
						if _, got := r.ask(i, r.host); err == nil && !errors.Is(got, waits) || err != nil && !errors.Is(got, err) {
							t.Errorf("at once, player %d: %v", i, got)
						}
					}
					r.stay(defaultSilence+table250, false)
				}
				r.wantEach(r.host, c.want...)
				if c.want[1] == nil {
					r.stay(2*time.Second+table250, false)
					r.bind(r.mustAsk(1, r.host), udpN(40), 1)
					if _, err := r.ask(2, r.host); !errors.Is(err, present) {
						t.Errorf("another player: %v", err)
					}
				}
				if r.left() != 0 {
					t.Errorf("%d records of hosts that have left", r.left())
				}
			})
		}
	}
}

// TestCrashInMigrationAfterBind: the join code of the old host leads to the new one after a crash.
func TestCrashInMigrationAfterBind(t *testing.T) {
	t.Parallel()
	r := newCrashRig(t, 2)
	next := r.mustAsk(0, r.host)
	r.feed(udpN(40), signed(next, 1, next.key))
	r.crash()
	r.wantErrors(next, alloc.ErrUnavailable, alloc.ErrUnavailable)
	r.wantErrors(r.host, none, none)
	r.feed(udpN(40), signed(next, 2, next.key))
	r.wantErrors(next, present, present)
	r.crash() // Once more: nothing depends on the number of crashes.
	r.feed(udpN(40), signed(next, 3, next.key))
	r.wantErrors(next, present, present)
}
