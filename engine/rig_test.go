package engine

// The rig: one relay without sockets and threads, in virtual time, for tests
// that say themselves what they expect. Where a model does, there is sim.

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

type sending struct {
	to  endpoint.Endpoint
	pkt []byte
}

// rig belongs to the test's goroutine.
type rig struct {
	caller netip.Addr // from which reservations are made; invalid: not known

	t       testing.TB
	now     int64 // ms
	cfg     Config
	ident   *identity
	run     int // of the relay, from 0
	path    string
	shared  *shared
	workers []*worker
	control *control
	sent    []sending // not taken yet
	ended   []EndEvent
	closed  map[endpoint.Endpoint]bool // endpoints whose sessions are closed
	many    bool                       // the holders of a token are many players
	row     bool                       // ids come in a row, so that two rigs have the same
	born    byte
}

const rigWorkers = 3

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	return newRigIn(t, newIdentity(t), cfg)
}

func newRigIn(t testing.TB, ident *identity, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, now: clockStart, cfg: cfg, ident: ident}
	r.cfg.MaxAllocations = cmp.Or(cfg.MaxAllocations, 8192)
	r.path = filepath.Join(r.ident.dir, "allocations")
	r.boot(statefile.PreviousRun{})
	r.shared.rules.recoverUntil = 0
	return r
}

func (r *rig) boot(left statefile.PreviousRun) {
	checker, err := newChecker()
	if err != nil {
		r.t.Fatal(err)
	}
	r.shared = &shared{
		rules: r.cfg.rules(), table: table.NewTable(r.cfg.MaxAllocations), sealer: r.ident.sealer(r.run),
		budgets: newBudgets(r.cfg.Unlimited), checker: checker, clock: func() int64 { return r.now },
		sources: newSources(r.cfg.Listen, nil, r.cfg.Advertise, &r.cfg),
	}
	r.shared.limits.Store(r.cfg.Limits.compile(r.cfg.Unlimited))
	r.shared.rules.recoverUntil += r.now - clockStart
	r.shared.log, r.shared.reportsRefusals = slog.New(slog.DiscardHandler), r.cfg.Hooks.Private.OnRefuse != nil
	wake := make(chan struct{}, 1)
	hooks := r.cfg.Hooks
	hooks.OnEnd = func(e EndEvent) { r.ended = append(r.ended, e) }
	c := newControl(r.shared, hooks, wake)
	c.seats.max = int64(r.cfg.MaxSeats)
	c.migrations = newMigrations(&r.cfg)
	c.recover(left)
	c.sendTotals = func() (n sendCounts) { return n }
	c.drain.finish = func() {}
	c.isOpen = func(ep endpoint.Endpoint) bool { return !r.closed[ep] }
	c.out.deliver = r.collect
	r.control, r.workers = c, nil
	var epochs []*epoch
	for range rigWorkers {
		w := newWorker(r.shared, 64, wake)
		w.out.deliver = r.collect
		r.workers = append(r.workers, w)
		epochs = append(epochs, w.epoch)
		c.inboxes.add(w.inbox)
	}
	r.shared.grace = newGrace(epochs)
	if path := r.cfg.fastPath(); path != nil {
		local := func(endpoint.Endpoint) (netip.AddrPort, bool) { return netip.AddrPort{}, true }
		r.control.nextHops = &nextHops{path: path, table: r.shared.table, tap: &r.shared.tap, localAddr: local}
		r.shared.grace.kernel = newKernelGrace(path.Synchronize, func() {})
	}
}

func (r *rig) restart(file bool) {
	r.t.Helper()
	if r.control.stateFile != nil {
		if err := r.control.stateFile.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	if !file {
		r.path += "x"
	}
	r.run++
	sealer := r.ident.sealer(r.run)
	l, left, err := statefile.Open(statefile.Config{
		Path: r.path, Capacity: 2 * r.cfg.MaxAllocations, Relay: sealer.Relay(), Boot: sealer.Boot(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.boot(left)
	r.control.stateFile = l
}

func (r *rig) collect(queue []sessionDatagram) sock.SendResult {
	for _, out := range queue {
		r.sent = append(r.sent, sending{out.to, append([]byte(nil), out.pkt...)})
	}
	return sock.SendResult{Sent: len(queue)}
}

func (r *rig) take() []sending {
	sent := r.sent
	r.sent = nil
	return sent
}

// worker returns the worker that gets all datagrams of an endpoint.
func (r *rig) worker(from endpoint.Endpoint) *worker {
	return r.workers[endpoint.Mix64(from.Hi^from.Lo<<16^from.Tail)>>32%rigWorkers]
}

// step hands one datagram to its worker, as a batch of one.
func (r *rig) step(from endpoint.Endpoint, pkt []byte) outcome {
	w := r.worker(from)
	w.epoch.enter()
	w.tap = r.shared.tap.Load()
	o := w.handleDatagram(r.now, from, pkt, false)
	w.count(o, len(pkt))
	w.out.flush()
	w.epoch.leave()
	return o
}

func (r *rig) feed(from endpoint.Endpoint, pkt []byte) outcome {
	o := r.step(from, pkt)
	r.pump()
	return o
}

func (r *rig) pump() {
	for r.control.runOnce(r.now) {
	}
	r.control.runOnce(r.now)
}

// advance lets time pass, with a look of control at each tick and at the end.
func (r *rig) advance(d time.Duration) {
	for until := r.now + d.Milliseconds(); r.now < until; {
		r.now = min(until, (r.now/table.TickMillis+1)*table.TickMillis)
		r.pump()
	}
}

// each calls do for every so many milliseconds of virtual time, which passes.
func (r *rig) each(every, d time.Duration, do func(i int)) {
	for i := range int(d / every) {
		do(i)
		r.advance(every)
	}
}

func (r *rig) reserve(role alloc.Role, host *mReservation, player string, max int) (*mReservation, error) {
	id, _ := newID()
	if r.row {
		r.born++
		id = proto.AllocationID{0xF0, 15: r.born}
	}
	t := alloc.Tenant{Project: "p"}
	c := seal.Claims{
		Role: role, ID: id, Match: id, Tenant: t.Hash(), Project: []byte(t.Project), Player: alloc.HashPlayer(t, player),
		MaxConnections: uint16(max), Network: r.shared.sealer.NewDeriver().NetworkTag(r.caller),
	}
	card := &mReservation{role: role.String(), id: mID(id), match: mID(id), player: player, max: max}
	var match *proto.AllocationID
	c.Individual = !r.many
	if host != nil {
		c.Match, card.match, c.MaxConnections = proto.AllocationID(host.id), host.id, 0
		match = &c.Match
		ticket := c
		ticket.Role, ticket.ID, ticket.Joiner = seal.RoleTicket, c.Match, id
		card.ticket = r.seal(ticket)
	}
	card.data = r.seal(c)
	c.Boot = r.shared.sealer.Boot()
	var key proto.Key
	r.shared.sealer.NewDeriver().Key(id, &key)
	card.key = key[:]
	sealed := claimsOf(&c)
	return card, r.control.reserve(&sealed, match, r.now)
}

// migrate reserves an allocation for a player that would take the place of its host, if the
// join code leads to host.
func (r *rig) migrate(player, host *mReservation) (*mReservation, error) {
	var scratch seal.Scratch
	opened, ok := r.shared.sealer.Open(&scratch, []byte(player.ticket))
	if !ok {
		r.t.Fatal("the ticket does not open")
	}
	t := claimsOf(&opened)
	former, err := r.control.placeFor(&t, proto.AllocationID(host.id), r.now)
	if err != nil {
		return nil, err
	}
	id, _ := newID()
	most := r.control.connectionsOf(former)
	c := seal.Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Tenant: t.tenant, Player: t.player, Project: []byte("p"), MaxConnections: most,
		Network: r.shared.sealer.NewDeriver().NetworkTag(r.caller),
	}
	card := &mReservation{role: "host", id: mID(id), match: mID(id), player: player.player, max: int(most)}
	card.data = r.seal(c)
	c.Boot = r.shared.sealer.Boot()
	var key proto.Key
	r.shared.sealer.NewDeriver().Key(id, &key)
	card.key = key[:]
	m := claimsOf(&c)
	x := candidate{ID: id, Joiner: t.joiner, Code: "6789BC"}
	return card, r.control.addCandidate(&m, alloc.Tenant{Project: "p"}, x, former, r.now)
}

func (r *rig) leave(host *mReservation) error {
	t := alloc.Tenant{Project: "p"}
	return r.control.leave(&alloc.LeaveRequest{
		Caller: alloc.Caller{Tenant: t}, PlayerHash: alloc.HashPlayer(t, host.player), Host: proto.AllocationID(host.id),
	}, r.now)
}

func (r *rig) seal(c seal.Claims) string {
	data, err := r.shared.sealer.Seal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data[:])
}

// host and joiner reserve and bind, and the joiner gets its link.
func (r *rig) host(at endpoint.Endpoint, max int) *mReservation {
	r.t.Helper()
	card, err := r.reserve(alloc.RoleHost, nil, "host", max)
	if err != nil {
		r.t.Fatal(err)
	}
	r.bind(card, at, 1)
	return card
}

func (r *rig) joiner(at endpoint.Endpoint, host *mReservation) *mReservation {
	r.t.Helper()
	card := r.unlinked(at, host)
	r.link(card, at)
	return card
}

func (r *rig) link(card *mReservation, at endpoint.Endpoint) {
	r.t.Helper()
	r.feed(at, connectMessage(card.id, card.ticket))
	if e := r.entry(card); e.Link == 0 {
		r.t.Fatal("no link")
	}
	r.take()
}

func (r *rig) unlinked(at endpoint.Endpoint, host *mReservation) *mReservation {
	r.t.Helper()
	return r.unlinkedOf(fmt.Sprint("player", at), at, host)
}

func (r *rig) unlinkedOf(player string, at endpoint.Endpoint, host *mReservation) *mReservation {
	r.t.Helper()
	card, err := r.reserve(alloc.RoleJoiner, host, player, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.bind(card, at, 1)
	return card
}

func (r *rig) bind(card *mReservation, at endpoint.Endpoint, nonce uint16) {
	r.t.Helper()
	r.feed(at, signed(card, nonce, card.key))
	if e := r.entry(card); e.Endpoint != at || e.Nonce != nonce {
		r.t.Fatalf("bound at %v with nonce %d, want %v, %d", e.Endpoint, e.Nonce, at, nonce)
	}
	r.take()
}

func (r *rig) entry(card *mReservation) table.Entry {
	e, _ := r.shared.table.ByID(proto.AllocationID(card.id))
	return e
}

func (r *rig) counted(o outcome) (n uint64) {
	n = r.control.counts.outcomes[o]
	for _, w := range r.workers {
		n += w.counts.outcomes[o]
	}
	return n
}

func (r *rig) live() int {
	n, _, _ := r.shared.table.Counts()
	return n
}

func udp(addr string) endpoint.Endpoint { return endpoint.UDP(netip.MustParseAddrPort(addr), 0, 0) }

func udpN(n int) endpoint.Endpoint {
	ip := netip.AddrFrom4([4]byte{198, 18 + byte(n>>16), byte(n >> 8), byte(n)})
	return endpoint.UDP(netip.AddrPortFrom(ip, 40_000), 0, 0)
}
