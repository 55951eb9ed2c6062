package engine

// The simulation: the whole engine but its sockets and threads, driven by one
// goroutine with a clock of its own, next to the reference model.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

const simWorkers = 2

type sim struct {
	now     int64
	shared  *shared
	workers []*worker
	control *control
	sent    []mSend   // what the engine sent since the last comparison
	reports []mReport // and reported

	fast     simFastPath // nil: workers handle all datagrams
	ident    *identity
	path     string // of the state file
	pumped   int64  // ms; when control last did something
	model    *model
	outcomes map[string]int
	decide   [simWorkers][2][]func() string // by class
	open     [simWorkers]bool               // in the middle of a batch
	cards    []*mReservation
	hits     map[string]int
	gates    map[uint64]bool // of budgets that are taken
	err      error
	failedAt int
}

// simFastPath is a fast path that handles single datagrams in the time of a simulation.
type simFastPath interface {
	driver.FastPath
	relay(now int64, from netip.AddrPort, pkt []byte) (to endpoint.Endpoint, ok bool)
}

// identity is where simulations get what outlives a run of a relay: the master key
// and the state file.
type identity struct {
	master  alloc.MasterKey
	dir     string
	sealers []*seal.Sealer // by boot
	files   int
	fast    simFastPath // of its simulations; they run one after another
}

func newIdentity(t testing.TB) *identity {
	t.Helper()
	h := &identity{master: testIdentity(t).Master, dir: t.TempDir()}
	if dir, err := os.MkdirTemp("/dev/shm", "ferry"); err == nil { // it never waits for a disk
		h.dir = dir
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	return h
}

func (h *identity) sealer(boot int) *seal.Sealer {
	for boot >= len(h.sealers) {
		s, err := seal.New(seal.Config{
			Master: h.master, Relay: alloc.RelayID{1}, Boot: uint64(len(h.sealers) + 7),
		})
		if err != nil {
			panic(err)
		}
		h.sealers = append(h.sealers, s)
	}
	return h.sealers[boot]
}

func testIdentity(t testing.TB) Identity {
	t.Helper()
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (h *identity) newSim(limits bool) *sim {
	s := newSimWith(h.sealer(0), limits, h.fast)
	h.files++
	s.ident, s.path = h, filepath.Join(h.dir, fmt.Sprint(h.files))
	return s
}

func newSim(sealer *seal.Sealer, limits bool) *sim { return newSimWith(sealer, limits, nil) }

func newSimWith(sealer *seal.Sealer, limits bool, fast simFastPath) *sim {
	s := &sim{fast: fast, now: clockStart, model: newModel(limits), outcomes: map[string]int{}}
	s.hits = s.model.hits
	s.boot(sealer, limits, statefile.PreviousRun{})
	s.shared.rules.recoverUntil = 0
	s.model.now, s.model.boots, s.model.settled = s.now, []int{0}, true
	return s
}

func (s *sim) boot(sealer *seal.Sealer, limits bool, left statefile.PreviousRun) {
	checker, err := newChecker()
	if err != nil {
		panic(err)
	}
	cfg := &Config{Unlimited: !limits, Limits: Limits{
		JoinerDatagrams: int(mJoinerQuota[0]), JoinerBytes: int(mJoinerQuota[1]),
		HostDatagrams: int(mHostQuota[0]), HostBytes: int(mHostQuota[1]),
		UnvalidatedBytes: mAllowance, UnvalidatedRatio: mRatio,
	}, HostMigration: HostMigration{Window: mHostMigrationWindow * time.Millisecond, Silence: mHostMigrationSilence * time.Millisecond}}
	memory := table.Memory{Slab: func(int) *table.Slab { return new(table.Slab) }}
	if s.fast != nil {
		memory, err = s.fast.Load(driver.FastPathSpec{MaxAllocations: 64})
		if err != nil {
			panic(err)
		}
	}
	s.shared = &shared{
		rules: cfg.rules(), table: table.NewTableIn(memory, 64), sealer: sealer,
		budgets: s.newBudgets(!limits), checker: checker, clock: func() int64 { return s.now },
	}
	s.shared.limits.Store(cfg.Limits.compile(cfg.Unlimited))
	s.shared.rules.recoverUntil += s.now - clockStart
	s.shared.rules.messages.safe[endpoint.KindUDP6] = mSafeMessage
	s.shared.rules.messages.most[endpoint.KindUDP6] = mMaxMessage
	s.shared.log = slog.New(slog.DiscardHandler)
	s.shared.sources = newSources(nil, nil, nil, cfg)
	wake := make(chan struct{}, 1)
	var epochs []*epoch
	s.control = newControl(s.shared, Hooks{Private: privateapi.Hooks{OnLargeMessage: s.onLargeMessage}}, wake)
	s.control.migrations = newMigrations(cfg)
	s.control.recover(left)
	s.control.players.limits = PlayerLimits{
		Hosts: mPlayerHosts, Joiners: mPlayerJoiners, JoinersPerHost: mPlayerJoinersPerHost, Seats: mPlayerSeats,
	}.withDefaults(3, !limits)
	s.control.sendTotals = func() (n sendCounts) { return n }
	s.control.isOpen = func(ep endpoint.Endpoint) bool { return !s.model.closed[addrOf(ep)] }
	s.control.drain.finish = func() {}
	s.workers = nil
	for range simWorkers {
		w := newWorker(s.shared, 64, wake)
		w.out.deliver = s.collect
		s.workers = append(s.workers, w)
		epochs = append(epochs, w.epoch)
		s.control.inboxes.add(w.inbox)
	}
	s.shared.grace = newGrace(epochs)
	if s.fast != nil {
		s.control.nextHops = &nextHops{path: s.fast, table: s.shared.table, tap: &s.shared.tap,
			localAddr: func(endpoint.Endpoint) (netip.AddrPort, bool) {
				return netip.AddrPort{}, true
			}}
		s.shared.grace.kernel = newKernelGrace(func() {}, func() {})
		for role, q := range s.shared.limits.Load().quotas {
			s.fast.SetQuota(table.Role(role), q)
		}
	}
	s.control.out.deliver = s.collect
	s.pumped = s.now
}

// restart ends the run of the relay and begins another, with the state file or
// without it. A first run has no file: nothing of it is known afterwards.
func (s *sim) restart(file bool) {
	s.settle()
	s.compare()
	file = file && s.control.stateFile != nil
	if s.control.stateFile != nil {
		if err := s.control.stateFile.Close(); err != nil {
			s.fail("state file: %v", err)
		}
		s.control.stateFile = nil
	}
	if !file {
		os.Remove(s.path)
	}
	s.model.restart(file)
	sealer := s.ident.sealer(s.model.boot)
	l, left, err := statefile.Open(statefile.Config{Path: s.path, Capacity: 256, Relay: sealer.Relay(), Boot: sealer.Boot()})
	if err != nil || left.Complete != file {
		s.fail("state file: kept %v, %v, %v", file, left.Err, err)
	}
	s.boot(sealer, s.model.limits, left)
	s.control.stateFile = l
	s.outcomes = map[string]int{}
}

// close gives back what the simulation has of the system: a process may map only
// so many files.
func (s *sim) close() {
	if s.control.stateFile != nil {
		if err := s.control.stateFile.Close(); err != nil {
			s.fail("state file: %v", err)
		}
		s.control.stateFile = nil
	}
	os.Remove(s.path)
}

func (s *sim) stall(d time.Duration) {
	from := s.pumped
	s.now += d.Milliseconds()
	s.model.now = s.now
	if s.now-from > stallMillis {
		s.model.noteStall(from, s.now)
	}
	s.pump()
	s.model.tick()
}

func (s *sim) collect(queue []sessionDatagram) sock.SendResult {
	for _, out := range queue {
		s.sent = append(s.sent, mSend{to: addrOf(out.to), bytes: string(out.pkt)})
	}
	return sock.SendResult{Sent: len(queue)}
}

func (s *sim) onLargeMessage(e privateapi.LargeMessageEvent) {
	s.reports = append(s.reports, mReport{mID(e.Match), mID(e.From), mID(e.To), e.Size, e.Limit, e.Dropped})
}

// simAddrs are the endpoints that clients use. Each belongs to one worker.
var simAddrs = func() (all []netip.AddrPort) {
	for i := range 8 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{[2]byte{192, 10}[i/4], 0, byte(2 + i/2%2), byte(1 + i/2)}), uint16(5000+i)))
	}
	for i := range 2 {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1)), 6000))
	}
	return all
}()

func addrOf(ep endpoint.Endpoint) mAddr { return mAddr(ep.AddrPort().String()) }

// worker is the worker that gets all datagrams of an address.
func (a mAddr) worker() int {
	for i, ap := range simAddrs {
		if mAddr(ap.String()) == a {
			return workerOf(i)
		}
	}
	panic("an address that no client has")
}

// prefix is what the ERROR budget of an address is shared by: the address, or
// for IPv6 its first 56 bits.
func (a mAddr) prefix() string {
	ip := netip.MustParseAddrPort(string(a)).Addr()
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 56).Masked().String()
}

// routingPrefix is what paths of one network share.
func (a mAddr) routingPrefix() string {
	ip := netip.MustParseAddrPort(string(a)).Addr()
	if ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	return netip.PrefixFrom(ip, 48).Masked().String()
}

// isPrivate: all players may have one such address, behind a proxy.
func (a mAddr) isPrivate() bool { return netip.MustParseAddrPort(string(a)).Addr().IsPrivate() }

// newBudgets makes budgets until the prefixes of the clients and the allocations have
// gates of their own, as the model assumes: the engine's tables are small on purpose.
func (s *sim) newBudgets(unlimited bool) *budgets {
	b := newBudgets(unlimited)
	for ; ; b.secret = rand.Uint64() {
		b.rates = budgetRates{
			prefix:         table.Rate{IntervalMicros: 100_000, Burst: mPrefixBurst},
			mismatch:       table.Rate{IntervalMicros: 1_000_000, Burst: 3},
			mismatchPrefix: table.Rate{IntervalMicros: 2_000_000, Burst: 1},
			rebind:         table.Rate{IntervalMicros: 2_000_000, Burst: 1},
			excessPath:     table.NewQuota(0, mExcessPath), excessPrefix: table.NewQuota(0, mExcessNetwork),
			excessAll:   table.NewQuota(0, mExcessAll),
			hostLinks:   table.Rate{IntervalMicros: 250_000, Burst: 4},
			joinerLinks: table.Rate{IntervalMicros: 1_000_000, Burst: 3},
		}
		s.gates = map[uint64]bool{}
		apart := true
		for _, prefix := range simPrefixes(b) {
			apart = apart && !s.gates[prefix]
			s.gates[prefix] = true
		}
		for _, c := range s.cards {
			apart = apart && s.takeGates(b, proto.AllocationID(c.id))
		}
		if apart {
			return b
		}
	}
}

func simPrefixes(b *budgets) (gates []uint64) {
	seen := map[string]bool{}
	for _, a := range simAddrs {
		if prefix := mAddr(a.String()).prefix(); !seen[prefix] {
			seen[prefix] = true
			gates = append(gates, b.prefixIndex(endpoint.UDP(a, 0, 0)))
		}
	}
	return gates
}

// takeGates takes the gates of an allocation, and reports false if it shares one.
func (s *sim) takeGates(b *budgets, id proto.AllocationID) bool {
	const ofAllocations = 1 << 32 // apart from those of prefixes
	gates := []uint64{b.allocationIndex(id, 0) | ofAllocations}
	for _, prefix := range simPrefixes(b) {
		gates = append(gates, b.allocationIndex(id, prefix)|ofAllocations*2)
	}
	for _, gate := range gates {
		if s.gates[gate] {
			return false // Those before stay taken, which does no harm.
		}
		s.gates[gate] = true
	}
	return true
}

func (s *sim) reserve(role alloc.Role, host *mReservation, tenant, player string, max int) {
	id, _ := newID()
	for !s.takeGates(s.shared.budgets, id) {
		id, _ = newID()
	}
	c := seal.Claims{
		Role: role, ID: id, Match: id, Tenant: alloc.Tenant{Project: tenant}.Hash(), Project: []byte(tenant),
		Player: alloc.HashPlayer(alloc.Tenant{Project: tenant}, player), MaxConnections: uint16(max),
	}
	card := &mReservation{role: role.String(), id: mID(id), match: mID(id), tenant: tenant, player: player, max: max}
	// Of three allocations the network of one is not known, and two called the API from
	// that of a client.
	if n := len(s.cards); n%3 != 0 {
		ap := simAddrs[n/3%len(simAddrs)]
		c.Network, card.network = s.shared.sealer.NewDeriver().NetworkTag(ap.Addr()), mAddr(ap.String()).prefix()
	}
	// Every player but "unbound" has a token of its own.
	c.Individual, card.individual = player != "unbound", player != "unbound"
	if host != nil {
		c.Match, card.match, c.MaxConnections = proto.AllocationID(host.id), host.id, 0
		card.ticket = s.seal(seal.Claims{
			Role: seal.RoleTicket, ID: c.Match, Match: c.Match, Joiner: id, Tenant: c.Tenant, Player: c.Player, Individual: c.Individual,
			Project: c.Project,
		})
	}
	card.data = s.seal(c)
	var key proto.Key
	s.shared.sealer.NewDeriver().Key(id, &key)
	card.key = key[:]
	var named *proto.AllocationID
	if host != nil {
		named = (*proto.AllocationID)(&host.id)
	}
	sealed := claimsOf(&c)
	silent := s.model.hits["migration: a join to a silent host"]
	err := s.control.reserve(&sealed, named, s.now)
	if ok := s.model.reserve(card); ok != (err == nil) {
		s.fail("reserve %s: engine says %v, model says %v", role, err, ok)
	} else if v := s.model.migrationOf(card.match); host != nil && !s.model.unsure[host.id] && errors.Is(err, alloc.ErrMigration) !=
		(v != nil && v.tenant == tenant || s.model.hits["migration: a join to a silent host"] > silent) {
		s.fail("reserve a joiner of %x: engine says %v, model says otherwise", host.id, err)
	} else if ok {
		s.cards = append(s.cards, card)
	}
}

func (s *sim) seal(c seal.Claims) string {
	data, err := s.shared.sealer.Seal(c)
	if err != nil {
		panic(err)
	}
	return string(data[:])
}

func (s *sim) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// workerOf is the worker that gets all datagrams of an address.
func workerOf(addr int) int { return addr % simWorkers }

// arrive leaves replies in the outbox until the worker's batch is over.
func (s *sim) arrive(addr int, pkt []byte, at int64) {
	i := workerOf(addr)
	w, ap := s.workers[i], simAddrs[addr]
	from := mAddr(ap.String())
	bound := s.model.byAddr[from] != nil
	queued := len(w.out.queue)
	got := s.handle(w, ap, pkt, at)
	w.count(got, len(pkt))
	s.model.fresh = false
	want, decide := s.model.arrive(from, pkt)
	if decide != nil {
		class := known
		if s.model.fresh {
			class = fresh
		}
		s.decide[i][class] = append(s.decide[i][class], decide)
		want = outcomePending.String()
	} else {
		s.outcomes[want]++
		s.hits["outcome: "+want]++
	}
	if got.String() != want {
		s.fail("datagram %x from %v: engine says %v, model says %s", head(pkt), ap, got, want)
	}
	s.checkReplies(w.out.queue[queued:], pkt, from, bound)
}

// handle hands a datagram to the fast path if there is one, and to a worker. A nil one is
// a sign of life of a session, as if from has one.
func (s *sim) handle(w *worker, from netip.AddrPort, pkt []byte, at int64) outcome {
	if pkt == nil {
		return w.noteAlive(at, endpoint.UDP(from, 0, 0))
	}
	if s.fast != nil {
		if to, ok := s.fast.relay(at, from, pkt); ok {
			w.out.add(to, pkt)
			return outRelayed
		}
	}
	return w.handleDatagram(at, endpoint.UDP(from, 0, 0), pkt, false)
}

func (s *sim) checkReplies(out []sessionDatagram, pkt []byte, from mAddr, bound bool) {
	if len(out) > 1 {
		s.fail("%d datagrams for one", len(out))
	}
	for _, o := range out {
		switch back := addrOf(o.to) == from; {
		case len(o.pkt) > len(pkt):
			s.fail("reply of %d bytes to %d", len(o.pkt), len(pkt))
		case back && !bound && len(o.pkt) >= len(pkt):
			s.fail("reply of %d bytes to %d from an unbound endpoint", len(o.pkt), len(pkt))
		case !back && !bytes.Equal(o.pkt, pkt):
			s.fail("forwarded datagram was changed")
		}
	}
}

func head(b []byte) []byte { return b[:min(len(b), 24)] }

func (s *sim) enter(i int) {
	s.workers[i].epoch.enter()
	s.open[i] = true
}

func (s *sim) leave(i int) {
	w := s.workers[i]
	w.out.flush()
	w.epoch.leave()
	s.open[i] = false
}

// pump lets control do everything it can, and the model decide in the order in
// which control takes the rings.
func (s *sim) pump() {
	first := s.control.inboxes.first
	s.runControl()
	s.model.endWindow()
	for i := range s.decide {
		i = (first + i) % len(s.decide)
		for class := range s.decide[i] {
			for _, decide := range s.decide[i][class] {
				outcome := decide()
				s.outcomes[outcome]++
				s.hits["outcome: "+outcome]++
			}
			s.decide[i][class] = s.decide[i][class][:0]
		}
	}
	s.model.endMigrations()
	s.pumped = s.now
	s.model.reply(s.confirmed)
}

// runControl lets control work until nothing waits for the kernel, in which no run of the
// program is under way.
func (s *sim) runControl() {
	for {
		s.control.runOnce(s.now)
		k := s.shared.grace.kernel
		if k == nil || k.done.Swap(k.wanted.Load()) == k.wanted.Load() {
			return
		}
	}
}

// confirmed reports whether the BIND_RECEIVED for an allocation has left the engine:
// the model knows nothing of grace.
func (s *sim) confirmed(id mID) bool {
	e, ok := s.shared.table.ByID(proto.AllocationID(id))
	return ok && e.Is(table.BindConfirmed)
}

// datagram is a batch of one.
func (s *sim) datagram(addr int, pkt []byte) {
	s.enter(workerOf(addr))
	s.arrive(addr, pkt, s.now)
	s.leave(workerOf(addr))
	s.pump()
}

func (s *sim) advance(d time.Duration) {
	until := s.now + d.Milliseconds()
	for s.now < until {
		s.now = min(until, (s.now/table.TickMillis+1)*table.TickMillis)
		s.model.now = s.now
		if s.now%table.TickMillis == 0 {
			s.runControl()
			s.pumped = s.now
			s.model.tick()
		}
	}
}

func (s *sim) settle() {
	for i := range s.open {
		if s.open[i] {
			s.leave(i)
		}
	}
	for range 4 { // A marked expiry needs one grace period to end, one to send.
		s.pump()
	}
}

// compare holds what both sent, counted and know against each other.
func (s *sim) compare() {
	s.model.extend(s.sent)
	if !sameSends(s.sent, s.model.out) {
		s.fail("engine sent\n%s\nmodel sent\n%s", show(s.sent), show(s.model.out))
	}
	s.sent, s.model.out = s.sent[:0], s.model.out[:0]
	byMatch := func(a, b mReport) int { return bytes.Compare(a.match[:], b.match[:]) }
	slices.SortFunc(s.reports, byMatch)
	slices.SortFunc(s.model.reports, byMatch)
	if !slices.Equal(s.reports, s.model.reports) {
		s.fail("engine reported %+v, model %+v", s.reports, s.model.reports)
	}
	s.reports, s.model.reports = s.reports[:0], s.model.reports[:0]
	s.compareState()
	if s.control.queue.len() != 0 {
		s.fail("control has actions left after all grace periods")
	}
	if s.err == nil {
		s.compareCounts()
	}
}

func sameSends(a, b []mSend) bool {
	equal := func(x, y mSend) bool { return x.to == y.to && x.bytes == y.bytes }
	if slices.EqualFunc(a, b, equal) {
		return true
	}
	order := func(x, y mSend) int {
		if c := strings.Compare(string(x.to), string(y.to)); c != 0 {
			return c
		}
		return strings.Compare(x.bytes, y.bytes)
	}
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, order)
	slices.SortFunc(b, order)
	return slices.EqualFunc(a, b, equal)
}

func show(sends []mSend) string {
	var b strings.Builder
	for _, x := range sends {
		fmt.Fprintf(&b, "  to %s: %x (%d bytes)\n", x.to, head([]byte(x.bytes)), len(x.bytes))
	}
	return b.String()
}

func (s *sim) compareState() {
	t := s.shared.table
	links := 0
	for _, c := range s.cards {
		a := s.model.allocs[c.id]
		e, ok := t.ByID(proto.AllocationID(c.id))
		if ok != (a != nil) {
			s.fail("allocation %x: engine has it: %v, model: %v", c.id, ok, a != nil)
			return
		}
		if !ok {
			continue
		}
		at := mAddr("")
		if !e.Endpoint.IsZero() {
			at = addrOf(e.Endpoint)
			var back table.Entry
			if !t.FindByEndpoint(e.Endpoint, &back) || back.Handle != e.Handle {
				s.fail("allocation %x is not the one at its endpoint", c.id)
			}
		}
		if at != a.at || int(e.Nonce) != a.nonce || e.Is(table.EverBound) != a.bound {
			s.fail("allocation %x: engine has it at %q with nonce %d, model at %q with %d", c.id, at, e.Nonce, a.at, a.nonce)
		}
		if large := t.LargeMessages(e.Handle); int(large.Drops()) != a.largeDrops || int(large.Forwarded()) != a.large {
			s.fail("allocation %x: engine dropped %d large messages to it and counted %d, model %d and %d",
				c.id, large.Drops(), large.Forwarded(), a.largeDrops, a.large)
		}
		for peer := range a.links {
			var p table.Entry
			if id := proto.AllocationID(peer); !t.FindPeer(&e, &id, &p) || p.ID != id {
				s.fail("link %x to %x is missing", c.id, peer)
			}
		}
		if c.role == "host" {
			links += len(a.links)
			account := t.Account(e.Handle)
			if int(account.Links) != len(a.links) || len(a.links) > c.max {
				s.fail("host %x: engine counts %d links, model %d of %d", c.id, account.Links, len(a.links), c.max)
			}
		}
	}
	s.learn()
	if n, bound, open := t.Counts(); n != len(s.model.allocs) || bound != len(s.model.byAddr) || open != links {
		s.fail("engine has %d allocations, %d bound, %d links; model %d, %d, %d",
			n, bound, open, len(s.model.allocs), len(s.model.byAddr), links)
	}
}

func (s *sim) compareCounts() {
	var sum, received uint64
	for o := range numOutcomes {
		n := s.control.counts.outcomes[o]
		for _, w := range s.workers {
			n += w.counts.outcomes[o]
		}
		sum += n
		if int(n) != s.outcomes[o.String()] {
			s.fail("outcome %v: engine counts %d, model %d", o, n, s.outcomes[o.String()])
		}
	}
	for _, w := range s.workers {
		received += w.counts.received
	}
	if sum != received {
		s.fail("%d outcomes for %d datagrams", sum, received)
	}
}

func signed(c *mReservation, nonce uint16, key []byte) []byte {
	var signer proto.Signer
	k := proto.Key(key)
	return signer.Append(nil, proto.Bind{Nonce: nonce, ConnectionData: []byte(c.data)}, &k)
}

func message(t byte, ids ...mID) []byte {
	pkt := []byte{0xDA, 0x72, 0, t}
	for _, id := range ids {
		pkt = append(pkt, id[:]...)
	}
	return pkt
}

func relayMessage(from, to mID, content int) []byte {
	pkt := message(10, from, to)
	pkt = binary.BigEndian.AppendUint16(pkt, uint16(content))
	return append(pkt, make([]byte, content)...)
}

func pingMessage(id mID) []byte { return append(message(2, id), 1, 0) }

func connectMessage(id mID, data string) []byte {
	return append(append(message(3, id), byte(len(data))), data...)
}
