package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// The times of a [migration], which its pace divides.
const (
	migrationLease = 3 * time.Second  // a player has the permission to itself
	migrationBind  = 10 * time.Second // an unbound host expires
	migrationCall  = time.Second      // a caller waits for the store or a relay
	migrationStall = 12 * time.Second // the longest pause of a process
)

// RunMigration lets all players of a match whose host has left succeed it at once, over
// several API processes with one directory. Calls to the store and to relays are lost before
// or after they are executed, are executed late, or take long, at random; players give up
// calls and disappear. It checks that the code never leaves a host whose player was answered,
// unless that player called again, and that the match has a host in the end. Pace divides all
// times.
func RunMigration(t *testing.T, d fleet.Directory, seed uint64, pace int) {
	const players, processes = 6, 3
	x := &migration{
		t: t, directory: d, pace: time.Duration(pace), rnd: rand.New(rand.NewPCG(seed, 1)), code: "6789BC",
		hosts: make(map[proto.AllocationID]*migratedHost), former: host(1 << 20), newHosts: make(map[proto.AllocationID]bool),
	}
	put(t, d, production, x.code, x.former, true)
	setHome(t, d, x.former, here)
	services := make([]*alloc.Service, processes)
	for i := range services {
		var err error
		services[i], err = alloc.NewService(alloc.ServiceConfig{
			Relay: migrationRelay{x}, Store: migrationStore{d, x}, HostMigration: true, Unlimited: true,
			KeepCode: migrationRelay{x}.keepCode, LiveRegions: func() []alloc.Region { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var announcer, all sync.WaitGroup
	announcer.Go(func() { x.announce(ctx) })
	for p := range players {
		// Only the first player is sure to stay.
		all.Go(func() { x.play(services, p, p > 0) })
	}
	all.Wait()
	x.late.Wait()
	cancel()
	announcer.Wait()
	x.check()
}

// migration is the relays and the players of a match whose host has left.
type migration struct {
	t         *testing.T
	directory fleet.Directory
	pace      time.Duration
	code      string
	former    proto.AllocationID
	late      sync.WaitGroup // calls whose callers do not wait

	mu    sync.Mutex // guards the following fields; not held during calls of the directory
	rnd   *rand.Rand
	hosts map[proto.AllocationID]*migratedHost
	next  int
	// candidate has the permission until granted.
	candidate int
	granted   time.Time
	newHosts  map[proto.AllocationID]bool
	faults    int
}

// migratedHost is a host that a player has reserved.
type migratedHost struct {
	player          int
	expires         time.Time // unless it is bound
	bound, answered bool
	kept            bool
	dropped         bool
	moves           []proto.AllocationID // to which its code has moved
}

func playerHash(p int) (h alloc.PlayerHash) {
	return alloc.HashPlayer(production, playerName(p))
}

func playerName(p int) string { return fmt.Sprint("player ", p) }

func (x *migration) roll(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rnd.IntN(n)
}

// pause waits for a random time, on average half of most.
func (x *migration) pause(most time.Duration) {
	time.Sleep(time.Duration(x.roll(int(most/x.pace)) + 1))
}

// live reports whether a host lives. The caller holds mu.
func (x *migration) live(id proto.AllocationID) bool {
	h := x.hosts[id]
	return h != nil && (h.bound || time.Now().Before(h.expires))
}

// call makes a call to the store or a relay, with faults. After an error the call may have
// been executed, or be so later.
func (x *migration) call(ctx context.Context, do func()) error {
	x.pause(20 * time.Millisecond)
	lost := fmt.Errorf("no answer: %w", alloc.ErrUnavailable)
	fault := x.roll(100)
	if fault < 20 {
		x.mu.Lock()
		x.faults++
		x.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil || fault < 4:
		return lost
	case fault < 10:
		do()
		return lost
	case fault < 15:
		x.late.Go(func() {
			x.pause(migrationStall)
			do()
		})
		x.pause(migrationCall)
		return lost
	case fault < 20:
		x.pause(migrationStall)
	}
	do()
	x.pause(20 * time.Millisecond)
	return nil
}

// migrationStore is the directory of one API process.
type migrationStore struct {
	fleet.Directory
	x *migration
}

func (s migrationStore) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	type answer struct {
		host proto.AllocationID
		err  error
	}
	got := make(chan answer, 1)
	if err := s.x.call(ctx, func() {
		host, err := s.Directory.HostOf(context.Background(), t, code)
		got <- answer{host, err}
	}); err != nil {
		return proto.AllocationID{}, err
	}
	a := <-got
	return a.host, a.err
}

func (s migrationStore) MoveCode(ctx context.Context, t alloc.Tenant, code string, from, to proto.AllocationID) (bool, error) {
	got := make(chan bool, 1)
	if err := s.x.call(ctx, func() {
		moved, err := s.Directory.MoveCode(context.Background(), t, code, from, to)
		if err != nil {
			s.x.t.Errorf("MoveCode: %v", err)
		}
		if moved {
			s.x.checkMove(from, to)
		}
		got <- moved
	}); err != nil {
		return false, err
	}
	return <-got, nil
}

// checkMove checks a move that was made: the former host has ended, or is one of the same
// player, and the relay of the next one keeps the code.
func (x *migration) checkMove(from, to proto.AllocationID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h, next := x.hosts[from], x.hosts[to]
	if !next.kept {
		x.t.Errorf("the relay of %v does not keep the code", to)
	}
	if h == nil {
		return // from is the former host
	}
	h.moves = append(h.moves, to)
	if next.player != h.player && x.live(from) {
		x.t.Errorf("the code has left the live host %v of player %d for %v of player %d", from, h.player, to, next.player)
	}
}

// migrationRelay is all relays of the fleet.
type migrationRelay struct{ x *migration }

func (r migrationRelay) Migrate(ctx context.Context, q alloc.MigrationRequest) (alloc.Migration, error) {
	player := int(binary.BigEndian.Uint32(q.Ticket[:]))
	answer := make(chan error, 1)
	if err := r.x.call(ctx, func() { answer <- r.x.permit(q, player) }); err != nil {
		return alloc.Migration{}, err
	}
	if err := <-answer; err != nil {
		return alloc.Migration{}, err
	}
	return alloc.Migration{Player: playerHash(player), MaxConnections: 5}, nil
}

// permit gives the permission to the first player, and to another one after a lease.
func (x *migration) permit(q alloc.MigrationRequest, player int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	switch {
	case q.Host != x.former || q.Player != playerHash(player) || q.Holder != x.former && !x.newHosts[q.Holder]:
		return alloc.ErrNotFound
	case x.candidate != player && now.Before(x.granted):
		return alloc.MigrationError{Candidate: host(x.candidate)}
	case x.candidate != player || !now.Before(x.granted):
		x.candidate, x.granted = player, now.Add(migrationLease/x.pace)
	}
	if !q.NewHost.IsZero() {
		x.newHosts[q.NewHost] = true
	}
	return nil
}

func (r migrationRelay) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	got := make(chan proto.AllocationID, 1)
	if err := r.x.call(ctx, func() { got <- r.x.reserve(q.Player) }); err != nil {
		return alloc.Reservation{}, err
	}
	id := <-got
	return alloc.Reservation{ID: id}, r.x.directory.SetHome(ctx, id, theirs)
}

func (x *migration) reserve(player alloc.PlayerHash) proto.AllocationID {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next++
	p := 0
	for playerHash(p) != player {
		p++
	}
	id := host(x.next)
	x.hosts[id] = &migratedHost{player: p, expires: time.Now().Add(migrationBind / x.pace)}
	return id
}

func (r migrationRelay) ReserveJoiner(context.Context, alloc.JoinerRequest) (alloc.Reservation, error) {
	return alloc.Reservation{}, errors.New("no player joins")
}

func (r migrationRelay) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	got := make(chan *alloc.Description, 1)
	if err := r.x.call(ctx, func() {
		r.x.mu.Lock()
		defer r.x.mu.Unlock()
		if !r.x.live(id) {
			got <- nil
			return
		}
		h := r.x.hosts[id]
		got <- &alloc.Description{Tenant: production.Hash(), Player: playerHash(h.player), Role: alloc.RoleHost, Bound: h.bound}
	}); err != nil {
		return alloc.Description{}, err
	}
	if d := <-got; d != nil {
		return *d, nil
	}
	return alloc.Description{}, alloc.ErrNotFound
}

func (r migrationRelay) keepCode(ctx context.Context, id proto.AllocationID, _ string) error {
	got := make(chan bool, 1)
	if err := r.x.call(ctx, func() {
		r.x.mu.Lock()
		defer r.x.mu.Unlock()
		live := r.x.live(id)
		if live {
			r.x.hosts[id].kept = true
		}
		got <- live
	}); err != nil {
		return err
	}
	if !<-got {
		return alloc.ErrNotFound
	}
	return nil
}

// announce is what the announcers of the relays do: late Holds of the former host with its
// code among those without, Holds of the new hosts, and their ends.
func (x *migration) announce(ctx context.Context) {
	since := time.Now().Add(-time.Hour)
	for ctx.Err() == nil {
		former := fleet.Held{Host: x.former, Tenant: production.Hash(), Since: since}
		if x.roll(4) == 0 {
			former.Code = x.code
		}
		var hold, drop []fleet.Held
		x.mu.Lock()
		for id, h := range x.hosts {
			held := fleet.Held{Host: id, Tenant: production.Hash(), Since: since.Add(time.Minute)}
			switch {
			case h.kept: // A player may take its place, for longer than this test.
				held.Code = x.code
				hold = append(hold, held)
			case x.live(id):
				hold = append(hold, held)
			case !h.dropped:
				h.dropped = true
				drop = append(drop, held)
			}
			if !x.live(id) {
				held.Code = ""
			}
		}
		x.mu.Unlock()
		for _, err := range []error{x.hold(here, []fleet.Held{former}), x.hold(theirs, hold), x.directory.Drop(context.Background(), theirs, drop)} {
			if err != nil {
				x.t.Errorf("an announcer: %v", err)
			}
		}
		x.pause(500 * time.Millisecond)
	}
}

func (x *migration) hold(home fleet.Home, held []fleet.Held) error {
	_, err := x.directory.Hold(context.Background(), home, held)
	return err
}

// play is one player, until the match has a host, or it disappears after it has become the
// host.
func (x *migration) play(services []*alloc.Service, p int, mayDisappear bool) {
	claim := alloc.MigrationClaim{Code: x.code, Host: x.former}
	binary.BigEndian.PutUint32(claim.Ticket[:], uint32(p))
	caller := alloc.Caller{Tenant: production, Player: playerName(p)}
	for range 2000 {
		x.pause(200 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second/x.pace)
		res, err := services[x.roll(len(services))].Migrate(ctx, caller, claim)
		cancel()
		switch {
		case err == nil && x.roll(10) == 0: // The answer is lost.
		case err == nil && mayDisappear && x.roll(3) == 0:
			x.answer(res.ID)
			return
		case err == nil:
			x.answer(res.ID)
			x.pause(2 * time.Second)
			if x.bind(res.ID) {
				return
			}
		case errors.Is(err, alloc.ErrHostPresent) && x.hasHost():
			return
		case errors.Is(err, alloc.ErrHostPresent), errors.Is(err, alloc.ErrMigration), errors.Is(err, alloc.ErrUnavailable):
		default:
			x.t.Errorf("player %d: %v", p, err)
			return
		}
	}
	x.t.Errorf("player %d waits for ever", p)
}

// answer records that a player has got its host.
func (x *migration) answer(id proto.AllocationID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hosts[id].answered = true
}

// bind reports whether a host is bound now.
func (x *migration) bind(id proto.AllocationID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hosts[id].bound = x.live(id)
	return x.hosts[id].bound
}

// hasHost reports whether a player that joins by the code finds a host.
func (x *migration) hasHost() bool {
	id, err := x.directory.HostOf(context.Background(), production, x.code)
	x.mu.Lock()
	defer x.mu.Unlock()
	return err == nil && x.live(id) && x.hosts[id].bound
}

// check checks the end: the code leads to a bound host, and any other bound host has lost it
// to another call of its own player.
func (x *migration) check() {
	final, err := x.directory.HostOf(context.Background(), production, x.code)
	x.mu.Lock()
	defer x.mu.Unlock()
	if h := x.hosts[final]; err != nil || h == nil || !h.bound || !h.answered {
		x.t.Errorf("the code leads to %v, %+v, %v", final, h, err)
	}
	for id, h := range x.hosts {
		if !h.bound || id == final {
			continue
		}
		if len(h.moves) == 0 || x.hosts[h.moves[0]] == nil || x.hosts[h.moves[0]].player != h.player {
			x.t.Errorf("player %d hosts %v, and the code leads to %v", h.player, id, final)
		}
	}
	if x.faults == 0 {
		x.t.Error("there was no fault: the test has shown nothing")
	}
}
