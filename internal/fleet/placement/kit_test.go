package placement

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var (
	testTenant = alloc.Tenant{Project: "game", Environment: "live"}
	errBroken  = fmt.Errorf("the store is gone: %w", alloc.ErrStoreUnavailable)
)

func relayID(n int) (id alloc.RelayID) {
	binary.BigEndian.PutUint32(id[:], uint32(n+1))
	return id
}

func hostID(n int) (id proto.AllocationID) {
	id[0] = 0xA0
	binary.BigEndian.PutUint32(id[12:], uint32(n+1))
	return id
}

func testNode(n int, region string, seats int) Node {
	return Node{
		Relay: relayID(n), Boot: 1, Region: region, Control: fmt.Sprint(n), Usage: Usage{Seats: seats}, RecoverFor: time.Minute,
	}
}

// fakeStore is registry and directory in memory, by the clock of the process.
type fakeStore struct {
	mu        sync.Mutex // guards the following fields
	err       error      // what every call answers
	hang      chan struct{}
	nodes     map[alloc.RelayID]Node
	beats     map[alloc.RelayID]time.Time
	intact    map[Home]bool
	homes     map[proto.AllocationID]fakeHome
	codes     map[fakeCode]proto.AllocationID
	byHost    map[proto.AllocationID]fakeCode
	calls     map[string]int
	renewed   []int // hosts per Renew
	renewedAt []time.Time
	setHome   error
}

type fakeHome struct {
	Home
	since, until time.Time
}

type fakeCode struct {
	tenant uint64
	code   string
}

func newFakeStore() *fakeStore {
	s := &fakeStore{calls: make(map[string]int)}
	s.lose()
	return s
}

// lose forgets everything, as a store does that fails over to an empty one.
func (s *fakeStore) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.beats = make(map[alloc.RelayID]Node), make(map[alloc.RelayID]time.Time)
	s.intact = make(map[Home]bool)
	s.homes = make(map[proto.AllocationID]fakeHome)
	s.codes = make(map[fakeCode]proto.AllocationID)
	s.byHost = make(map[proto.AllocationID]fakeCode)
}

func (s *fakeStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *fakeStore) called(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[name]
}

// enter counts a call and takes the lock, or returns why the call fails.
func (s *fakeStore) enter(ctx context.Context, name string) error {
	s.mu.Lock()
	hang := s.hang
	s.calls[name]++
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	if hang == nil {
		return nil
	}
	s.mu.Unlock()
	select {
	case <-hang:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	return nil
}

func (s *fakeStore) Announce(ctx context.Context, n Node) (bool, error) {
	if err := s.enter(ctx, "Announce"); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	run := Home{n.Relay, n.Boot}
	intact := s.intact[run]
	s.nodes[n.Relay], s.beats[n.Relay], s.intact[run] = n, time.Now(), true
	return intact, nil
}

func (s *fakeStore) Nodes(ctx context.Context) ([]Seen, error) {
	if err := s.enter(ctx, "Nodes"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var all []Seen
	for id, n := range s.nodes {
		age := time.Since(s.beats[id])
		if age <= n.RecoverFor+DeadAfter+time.Minute {
			all = append(all, Seen{Node: n, Age: age})
		}
	}
	return all, nil
}

func (s *fakeStore) Withdraw(ctx context.Context, relay alloc.RelayID, boot uint64) error {
	if err := s.enter(ctx, "Withdraw"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.nodes[relay].Boot == boot {
		delete(s.nodes, relay)
	}
	return nil
}

func (s *fakeStore) SetHome(ctx context.Context, host proto.AllocationID, home Home) error {
	if err := s.enter(ctx, "SetHome"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.setHome != nil {
		return s.setHome
	}
	s.homes[host] = fakeHome{home, time.Now(), time.Now().Add(HostTTL)}
	return nil
}

func (s *fakeStore) HomeOf(ctx context.Context, host proto.AllocationID) (Home, error) {
	if err := s.enter(ctx, "HomeOf"); err != nil {
		return Home{}, err
	}
	defer s.mu.Unlock()
	h, ok := s.alive(host)
	if !ok {
		return Home{}, alloc.ErrNotFound
	}
	return h.Home, nil
}

func (s *fakeStore) alive(host proto.AllocationID) (fakeHome, bool) {
	h, ok := s.homes[host]
	return h, ok && time.Now().Before(h.until)
}

func (s *fakeStore) Renew(ctx context.Context, home Home, entries []HostEntry) (lost []Lost, err error) {
	if err := s.enter(ctx, "Renew"); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	s.renewed, s.renewedAt = append(s.renewed, len(entries)), append(s.renewedAt, time.Now())
	for _, x := range entries {
		if h, ok := s.alive(x.Host); ok && h.since.Before(x.Since) {
			x.Since = h.since // As the stores do.
		}
		s.homes[x.Host] = fakeHome{home, x.Since, time.Now().Add(HostTTL)}
		if x.Code == "" {
			continue
		}
		key := fakeCode{x.Tenant, x.Code}
		other, taken := s.codes[key]
		if h, ok := s.alive(other); taken && ok && other != x.Host && h.since.Before(x.Since) {
			lost = append(lost, Lost{x.Host, other})
			continue
		}
		s.codes[key], s.byHost[x.Host] = x.Host, key
	}
	return lost, nil
}

func (s *fakeStore) Drop(ctx context.Context, home Home, entries []HostEntry) error {
	if err := s.enter(ctx, "Drop"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for _, x := range entries {
		if s.homes[x.Host].Home == home {
			s.forget(x.Host)
			delete(s.homes, x.Host)
		}
	}
	return nil
}

func (s *fakeStore) forget(host proto.AllocationID) {
	if key, ok := s.byHost[host]; ok {
		delete(s.codes, key)
		delete(s.byHost, host)
	}
}

func (s *fakeStore) PutCode(ctx context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	if err := s.enter(ctx, "PutCode"); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	key := fakeCode{t.Hash(), code}
	if _, has := s.byHost[host]; has {
		return false, nil
	}
	if _, taken := s.codes[key]; taken {
		return false, nil
	}
	s.codes[key], s.byHost[host] = host, key
	return true, nil
}

func (s *fakeStore) MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	if err := s.enter(ctx, "MoveCode"); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	key := fakeCode{tenant, code}
	holder, taken := s.codes[key]
	if taken && holder == to {
		return true, nil
	}
	if _, has := s.byHost[to]; has || taken && holder != from {
		return false, nil
	}
	if taken {
		delete(s.byHost, from)
	}
	s.codes[key], s.byHost[to] = to, key
	return true, nil
}

func (s *fakeStore) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	if err := s.enter(ctx, "HostOf"); err != nil {
		return proto.AllocationID{}, err
	}
	defer s.mu.Unlock()
	host, ok := s.codes[fakeCode{t.Hash(), code}]
	if _, alive := s.alive(host); !ok || !alive {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return host, nil
}

func (s *fakeStore) CodeOf(ctx context.Context, _ alloc.Tenant, host proto.AllocationID) (string, error) {
	if err := s.enter(ctx, "CodeOf"); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	key, ok := s.byHost[host]
	if _, alive := s.alive(host); !ok || !alive {
		return "", alloc.ErrCodeNotFound
	}
	return key.code, nil
}

func (s *fakeStore) Codes(ctx context.Context, _ alloc.Tenant, _ proto.AllocationID) (string, int, error) {
	if err := s.enter(ctx, "Codes"); err != nil {
		return "", 0, err
	}
	defer s.mu.Unlock()
	return "", len(s.codes), nil
}

func (s *fakeStore) Forget(host proto.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["Forget"]++
	s.forget(host)
}

// fakeEngine reserves and never serves. As a Relay it is a relay with
// configured answers.
type fakeEngine struct {
	mu     sync.Mutex // guards the following fields
	next   int
	first  int // ids begin here, so that those of two engines differ
	err    error
	hang   bool // until the deadline
	away   map[proto.AllocationID]bool
	live   map[proto.AllocationID]alloc.HostRequest
	kept   map[proto.AllocationID]string
	asked  int
	joined []alloc.JoinerRequest
	asks   []alloc.MigrationRequest
	// The hooks are called with mu held, so in the order of changes.
	onReserve func(id proto.AllocationID, tenant uint64)
	onEnd     func(proto.AllocationID)
}

func newFakeEngine(n int) *fakeEngine {
	return &fakeEngine{
		first: n << 20, live: make(map[proto.AllocationID]alloc.HostRequest),
		kept: make(map[proto.AllocationID]string), away: make(map[proto.AllocationID]bool),
	}
}

func (e *fakeEngine) answer(ctx context.Context) error {
	e.mu.Lock()
	e.asked++
	err, hang := e.err, e.hang
	e.mu.Unlock()
	if hang {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", alloc.ErrUnavailable, ctx.Err())
	}
	return err
}

func (e *fakeEngine) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	if err := e.answer(ctx); err != nil {
		return alloc.Reservation{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id := hostID(e.first + e.next)
	e.next++
	e.live[id] = r
	if e.onReserve != nil {
		e.onReserve(id, r.Tenant.Hash())
	}
	return alloc.Reservation{ID: id}, nil
}

func (e *fakeEngine) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	if _, err := e.Describe(ctx, r.Host); err != nil {
		return alloc.Reservation{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.joined = append(e.joined, r)
	return alloc.Reservation{ID: proto.AllocationID{0xB0}}, nil
}

// MigrateHost gives every player of a host that has ended a reservation.
func (e *fakeEngine) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	_, err := e.Describe(ctx, r.Host)
	switch {
	case err == nil:
		return alloc.Reservation{}, alloc.RefusedError{Err: alloc.ErrHostPresent, Host: r.Host}
	case !errors.Is(err, alloc.ErrNotFound):
		return alloc.Reservation{}, err
	}
	e.mu.Lock()
	e.asks = append(e.asks, r)
	e.mu.Unlock()
	return e.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: r.Tenant}, PlayerHash: r.PlayerHash, MaxConnections: 7})
}

func (e *fakeEngine) LeaveHost(ctx context.Context, r alloc.LeaveRequest) error {
	_, err := e.Describe(ctx, r.Host)
	return err
}

func (e *fakeEngine) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	if err := e.answer(ctx); err != nil {
		return alloc.Description{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.live[id]
	switch {
	case e.away[id]:
		return alloc.Description{}, alloc.ErrUnavailable
	case !ok:
		return alloc.Description{}, alloc.ErrNotFound
	}
	return alloc.Description{Tenant: r.Tenant.Hash(), Player: r.PlayerHash, Role: alloc.RoleHost}, nil
}

func (e *fakeEngine) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	if _, err := e.Describe(ctx, host); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept[host] = code
	return nil
}

func (e *fakeEngine) End(_ context.Context, id proto.AllocationID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.live[id]
	delete(e.live, id)
	if !ok {
		return alloc.ErrNotFound
	}
	if e.onEnd != nil {
		e.onEnd(id)
	}
	return nil
}

func (e *fakeEngine) set(err error, hang bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err, e.hang = err, hang
}

func (e *fakeEngine) setAway(host proto.AllocationID, away bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.away[host] = away
}

func (e *fakeEngine) count() (asked, live int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked, len(e.live)
}

// fakeDialer finds relays by their control address.
type fakeDialer map[string]Relay

func (d fakeDialer) Relay(n Node) Relay { return d[n.Control] }

// world is a fleet of fake relays which announce themselves, in a bubble.
type world struct {
	*Fleet
	store   *fakeStore
	relays  []*fakeEngine
	running []context.CancelFunc // the heartbeats, by relay
	nodes   []Node
}

// inWorld runs a test in a bubble, with a fleet of these nodes.
func inWorld(t *testing.T, nodes []Node, change func(*Config), test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{store: newFakeStore(), nodes: nodes}
		dialer := make(fakeDialer)
		for i, n := range nodes {
			w.relays = append(w.relays, newFakeEngine(i))
			w.running = append(w.running, nil)
			dialer[n.Control] = w.relays[i]
			w.beat(t, i)
		}
		cfg := Config{Registry: w.store, Directory: w.store, Dialer: dialer, Seed: 1}
		if change != nil {
			change(&cfg)
		}
		w.Fleet = New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		test(t, w)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// beat has relay i announce itself until it is killed or the test ends.
func (w *world) beat(t *testing.T, i int) {
	ctx, cancel := context.WithCancel(t.Context())
	w.running[i] = cancel
	announce := func() {
		w.store.mu.Lock()
		n := w.nodes[i]
		w.store.mu.Unlock()
		_, _ = w.store.Announce(ctx, n)
	}
	announce()
	go func() {
		for {
			select {
			case <-time.After(HeartbeatEvery):
				announce()
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (w *world) change(i int, how func(*Node)) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	how(&w.nodes[i])
}

// kill ends the heartbeat of relay i, which answers nothing any more.
func (w *world) kill(i int) {
	w.running[i]()
	w.relays[i].set(nil, true)
}

func (w *world) host(max int, region string) (alloc.Reservation, error) {
	return w.ReserveHost(context.Background(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: max, Region: region,
	})
}

func (w *world) mustHost(t *testing.T, max int, region string) proto.AllocationID {
	t.Helper()
	res, err := w.host(max, region)
	if err != nil {
		t.Fatal(err)
	}
	return res.ID
}

func (w *world) join(host proto.AllocationID) error {
	_, err := w.ReserveJoiner(context.Background(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: host})
	return err
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}
