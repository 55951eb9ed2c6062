package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

// The times of a [migration], which its pace divides.
const (
	migrationBind  = 10 * time.Second // an unbound candidate expires
	migrationTurn  = 2 * time.Second  // and yields to another player
	migrationCall  = time.Second      // a caller waits for the store or a relay
	migrationStall = 12 * time.Second // the longest pause of a process
	migrationPlay  = 5 * time.Second  // a host stays at most
)

const (
	migrationPlayers = 6
	migrationRounds  = 4 // hosts that take the place of the one before
)

// RunMigration has all players of a match ask for the place of its host, and of three hosts
// after it, over three API processes and an announcer with one directory. Calls to the store and
// to the relay are lost before or after they are executed, are executed late, or take long, at
// random; players give up calls, and disappear with a reservation. It checks that the code
// leads to bound hosts only, from each to a later one, and to the last one in the end. Pace
// divides the times of players and faults.
func RunMigration(t *testing.T, d placement.Directory, seed uint64, pace int) {
	const processes = 3
	x := &migration{
		t: t, directory: d, pace: time.Duration(pace), rnd: rand.New(rand.NewPCG(seed, 1)), code: "6789BC",
		hosts: []proto.AllocationID{host(1 << 20)}, hostLeft: true, next: 1,
	}
	put(t, d, production, x.code, x.hosts[0], true)
	setHome(t, d, x.hosts[0], theirs)
	x.announcer = placement.NewAnnouncer(placement.AnnouncerConfig{
		Registry: migrationRegistry{}, Directory: migrationDirectory{d, x},
		Node:          func() placement.Node { return placement.Node{Relay: theirs.Relay, Boot: theirs.Boot} },
		OnMoveRefused: func(id proto.AllocationID) { t.Errorf("host %v does not get the code", id) },
		OnLost:        func(id proto.AllocationID) { t.Errorf("host %v has lost the code", id) },
	})
	x.announcer.HostReturned(x.hosts[0], production.Hash())
	x.announcer.KeepCode(x.hosts[0], x.code)
	services := make([]*alloc.Service, processes)
	for i := range services {
		var err error
		services[i], err = alloc.NewService(alloc.ServiceConfig{
			Relay: migrationRelay{alloctest.NewRelay(), x}, Store: migrationDirectory{d, x}, HostMigration: true, MaxOutstanding: 65536,
			LiveRegions: func() []alloc.Region { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running, playing sync.WaitGroup
	running.Go(func() { _ = x.announcer.Run(ctx) })
	running.Go(func() { x.watch(ctx) })
	for p := range migrationPlayers {
		playing.Go(func() { x.play(services, p) })
	}
	playing.Wait()
	x.late.Wait()
	x.check(services)
	cancel()
	running.Wait()
}

// migration is the relay and the players of a match whose hosts leave.
type migration struct {
	t         *testing.T
	directory placement.Directory
	announcer *placement.Announcer
	pace      time.Duration
	code      string
	late      sync.WaitGroup // calls whose callers do not wait

	mu   sync.Mutex // guards the following fields; not entries during calls of the directory
	rnd  *rand.Rand
	calm bool // there are no more faults
	// hosts are those that were bound, in this order. The last one has left if hostLeft is set.
	hosts     []proto.AllocationID
	hostLeft  bool
	candidate migrationCandidate // zero: none
	next      int
	faults    int
	refused   int // BINDs of candidates that were too late
}

// migrationCandidate is a reservation for the place of the last host.
type migrationCandidate struct {
	id      proto.AllocationID
	player  int
	expires time.Time
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

// fault rolls the fault of a call: 0 to 99, and no fault from 20 on.
func (x *migration) fault() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.calm {
		return 99
	}
	n := x.rnd.IntN(100)
	if n < 20 {
		x.faults++
	}
	return n
}

// call makes a call to the store or a relay, with faults. After an error the call may have
// been executed, or be so later.
func (x *migration) call(ctx context.Context, do func()) error {
	x.pause(20 * time.Millisecond)
	lost := fmt.Errorf("no answer: %w", alloc.ErrUnavailable)
	fault := x.fault()
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

// migrationRegistry is a registry that loses nothing.
type migrationRegistry struct{}

func (migrationRegistry) Announce(context.Context, placement.Node) (bool, error) { return true, nil }
func (migrationRegistry) Nodes(context.Context) ([]placement.Seen, error)        { return nil, nil }
func (migrationRegistry) Withdraw(context.Context, alloc.RelayID, uint64) error  { return nil }

// migrationDirectory is the directory of one process.
type migrationDirectory struct {
	placement.Directory
	x *migration
}

func (d migrationDirectory) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	type answer struct {
		host proto.AllocationID
		err  error
	}
	got := make(chan answer, 1)
	if err := d.x.call(ctx, func() {
		host, err := d.Directory.HostOf(context.Background(), t, code)
		got <- answer{host, err}
	}); err != nil {
		return proto.AllocationID{}, err
	}
	a := <-got
	return a.host, a.err
}

func (d migrationDirectory) MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	got := make(chan bool, 1)
	if err := d.x.call(ctx, func() {
		moved, err := d.Directory.MoveCode(context.Background(), tenant, code, from, to)
		if err != nil {
			d.x.t.Errorf("MoveCode: %v", err)
		}
		got <- moved
	}); err != nil {
		return false, err
	}
	return <-got, nil
}

func (d migrationDirectory) Renew(ctx context.Context, home placement.Home,
	entries []placement.HostEntry) (lost []placement.Lost, err error) {
	entries = slices.Clone(entries) // The call may be late.
	got := make(chan []placement.Lost, 1)
	if err := d.x.call(ctx, func() {
		lost, err := d.Directory.Renew(context.Background(), home, entries)
		if err != nil {
			d.x.t.Errorf("Renew: %v", err)
		}
		got <- lost
	}); err != nil {
		return nil, err
	}
	return <-got, nil
}

// migrationRelay is the relay of the match, as the API processes call it.
type migrationRelay struct {
	*alloctest.Relay
	x *migration
}

func (r migrationRelay) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	type answer struct {
		id  proto.AllocationID
		err error
	}
	got := make(chan answer, 1)
	if err := r.x.call(ctx, func() {
		id, err := r.x.reserve(&q)
		got <- answer{id, err}
	}); err != nil {
		return alloc.Reservation{}, err
	}
	a := <-got
	if a.err != nil {
		return alloc.Reservation{}, a.err
	}
	return alloc.Reservation{ID: a.id}, r.x.directory.SetHome(ctx, a.id, theirs)
}

// reserve is the rule of the engine: one candidate at a time.
func (x *migration) reserve(q *alloc.MigrationRequest) (proto.AllocationID, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	player := int(binary.BigEndian.Uint32(q.Ticket[:]))
	if !slices.Contains(x.hosts, q.Host) || q.PlayerHash != alloc.HashPlayer(production, playerName(player)) || q.Code != x.code {
		return proto.AllocationID{}, alloc.ErrNotFound
	}
	if !x.hostLeft {
		return proto.AllocationID{}, alloc.RefusedError{Err: alloc.ErrHostPresent, Host: x.hosts[len(x.hosts)-1]}
	}
	now := time.Now()
	if c := x.candidate; c.player != player && now.Before(c.expires.Add((migrationTurn-migrationBind)/x.pace)) {
		return proto.AllocationID{}, alloc.RefusedError{Err: alloc.ErrMigration, Reason: "another player", RetryAfter: time.Second}
	}
	id := host(x.next)
	x.next++
	x.announcer.HostReserved(id, production.Hash())
	x.candidate = migrationCandidate{id, player, now.Add(migrationBind / x.pace)}
	return id, nil
}

// bind reports whether a candidate is the new host now.
func (x *migration) bind(id proto.AllocationID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.candidate; c.id != id || !time.Now().Before(c.expires) {
		x.refused++
		return false
	}
	x.announcer.HostMigrated(production.Hash(), x.code, x.hosts[len(x.hosts)-1], id)
	x.hosts, x.hostLeft, x.candidate = append(x.hosts, id), false, migrationCandidate{}
	return true
}

// leave reports whether a host leaves: the last one stays.
func (x *migration) leave() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hostLeft = len(x.hosts) <= migrationRounds
	return x.hostLeft
}

func (r migrationRelay) ReserveJoiner(_ context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	if r.x.hostLeft || q.Host != r.x.hosts[len(r.x.hosts)-1] {
		return alloc.Reservation{}, alloc.RefusedError{Err: alloc.ErrMigration, Reason: "the code moves", RetryAfter: time.Second}
	}
	return alloc.Reservation{ID: proto.AllocationID{0xB0}}, nil
}

// play is one player, until the last host is there.
func (x *migration) play(services []*alloc.Service, p int) {
	var ticket alloc.ConnectionData
	binary.BigEndian.PutUint32(ticket[:], uint32(p))
	caller := alloc.Caller{Tenant: production, Player: playerName(p)}
	for range 2000 {
		x.pause(200 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second/x.pace)
		res, err := services[x.roll(len(services))].Migrate(ctx, caller, x.code, ticket)
		cancel()
		switch {
		case err == nil && (x.roll(10) == 0 || p > 0 && x.roll(3) == 0): // The answer is lost, or the player disappears for a while.
			x.pause(2 * migrationBind)
		case err == nil:
			x.pause(migrationTurn)
			if !x.bind(res.ID) {
				continue
			}
			x.pause(migrationPlay)
			if !x.leave() {
				return
			}
		case errors.Is(err, alloc.ErrHostPresent):
			if x.isOver() {
				return
			}
		case errors.Is(err, alloc.ErrMigration), errors.Is(err, alloc.ErrUnavailable):
		default:
			x.t.Errorf("player %d: %v", p, err)
			return
		}
	}
	x.t.Errorf("player %d waits for ever", p)
}

func (x *migration) isOver() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.hosts) == migrationRounds+1
}

// place returns which host the code leads to: that of a number, from 0.
func (x *migration) place() int {
	id, err := x.directory.HostOf(context.Background(), production, x.code)
	x.mu.Lock()
	defer x.mu.Unlock()
	n := slices.Index(x.hosts, id)
	if err != nil || n < 0 {
		x.t.Errorf("the code leads to %v, which was not bound: %v", id, err)
	}
	return n
}

// watch checks that the code leads from a host to a later one.
func (x *migration) watch(ctx context.Context) {
	for last := 0; ctx.Err() == nil; x.pause(100 * time.Millisecond) {
		n := x.place()
		if n < last {
			x.t.Errorf("the code has gone from host %d to host %d", last, n)
		}
		last = max(n, last)
	}
}

// check checks the end: the code leads to the last host, also for a player that joins by any
// process, and after the ends of the others.
func (x *migration) check(services []*alloc.Service) {
	x.mu.Lock()
	x.calm = true
	hosts := slices.Clone(x.hosts)
	x.mu.Unlock()
	for range 3000 { // An announcer tries once a second.
		if x.place() == migrationRounds {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i, s := range services {
		if _, err := s.Join(context.Background(), alloc.Caller{Tenant: production, Player: "late"}, x.code); err != nil {
			x.t.Errorf("join by process %d: %v", i, err)
		}
	}
	for _, id := range hosts[:migrationRounds] {
		x.announcer.HostEnded(id)
	}
	for range 3000 {
		if x.announcer.Stats().Ends == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := x.place(); n != migrationRounds {
		x.t.Errorf("the code leads to host %d", n)
	}
	wantHome(x.t, x.directory, hosts[migrationRounds], theirs)
	wantCode(x.t, x.directory, production, hosts[migrationRounds], x.code)
	for _, id := range hosts[:migrationRounds] {
		wantCode(x.t, x.directory, production, id, "")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.faults == 0 {
		x.t.Error("there was no fault: the test has shown nothing")
	}
	x.t.Logf("%d reservations, %d of which were bound too late, %d faults", x.next-1, x.refused, x.faults)
}
