package engine

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// fakePath is a fast path without a program. Its next hop to an endpoint is the last byte of the
// address, and base.
type fakePath struct {
	base       table.NextHop
	asked      int
	generation uint64
	resumed    []uint64
	inKernel   chan struct{} // Synchronize waits for it, if it is not nil
	synced     atomic.Int64
	quotas     [4]table.Quota // by role
}

func (p *fakePath) Load(driver.FastPathSpec) (m table.Memory, err error) { return m, nil }
func (p *fakePath) SetQuota(role table.Role, q table.Quota)              { p.quotas[role] = q }
func (p *fakePath) Generation() uint64                                   { return p.generation }
func (p *fakePath) Resume(generation uint64)                             { p.resumed = append(p.resumed, generation) }
func (p *fakePath) Driver() driver.FastPath                              { return p }
func (p *fakePath) Counts() privateapi.FastPathCounts                    { return privateapi.FastPathCounts{} }
func (p *fakePath) Optional() bool                                       { return false }
func (p *fakePath) Traffic(uint32) (datagrams, bytes uint64)             { return 0, 0 }
func (p *fakePath) Run(context.Context, func()) error                    { return nil }
func (p *fakePath) Close()                                               {}
func (p *fakePath) NextHop(to endpoint.Endpoint, _ netip.AddrPort) table.NextHop {
	p.asked++
	return p.base + table.NextHop(to.Lo&0xff)
}

func (p *fakePath) Synchronize() {
	p.synced.Add(1)
	if p.inKernel != nil {
		<-p.inKernel
	}
}

func (r *rig) wantNextHop(card *mReservation, want table.NextHop) {
	r.t.Helper()
	if want != 0 {
		want |= table.NextHopUnseen
	}
	if got := r.shared.table.NextHop(r.entry(card).Handle); got != want {
		r.t.Errorf("the next hop to %v is %d, want %d", r.entry(card).Endpoint, got, want)
	}
}

func (r *rig) endKernelGrace() {
	k := r.shared.grace.kernel
	k.done.Store(k.wanted.Load())
	r.pump()
}

// TestNextHops: an allocation at a plain endpoint has a next hop to there, and none elsewhere, after
// it was displaced, or after its end, which may be that of a ban.
func TestNextHops(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{FastPath: &fakePath{base: 100}})
	host := r.host(udpN(1), 2)
	r.wantNextHop(host, 101)
	r.bind(host, udpN(2), 2)
	r.wantNextHop(host, 102)
	for _, kind := range []endpoint.Kind{endpoint.KindDTLS, endpoint.KindSession} {
		r.bind(host, endpoint.Serial(kind, 7), r.entry(host).Nonce+1)
		r.wantNextHop(host, 0)
	}
	r.bind(host, udpN(3), 9)
	r.wantNextHop(host, 103)

	player := r.unlinked(udpN(4), host)
	r.advance(heldTicks * table.TickMillis * 1e6)
	r.bind(host, udpN(4), 10)
	r.wantNextHop(host, 104)
	r.wantNextHop(player, 0)
	h := r.entry(host).Handle
	r.feed(udpN(4), message(11, host.id))
	if nextHop := r.shared.table.NextHop(h); nextHop != 0 {
		t.Errorf("the next hop of an ended allocation is %d", nextHop)
	}
	host = r.host(udpN(5), 2)
	player = r.joiner(udpN(6), host)
	for _, c := range []struct {
		card *mReservation
		end  func(proto.AllocationID, int64) error
	}{{player, r.control.kick}, {host, r.control.endByID}} {
		h := r.entry(c.card).Handle
		r.wantNextHop(c.card, 100+table.NextHop(r.entry(c.card).Endpoint.Lo&0xff))
		if err := c.end(proto.AllocationID(c.card.id), r.now); err != nil {
			t.Fatal(err)
		}
		if nextHop := r.shared.table.NextHop(h); nextHop != 0 {
			t.Errorf("the next hop of an allocation that a ban has ended is %d", nextHop)
		}
	}
}

// TestNextHopOfSession: when a DTLS session begins at the source of a plain endpoint, its owner
// loses the next hop, since workers drop its messages; and gets none while the session lives.
func TestNextHopOfSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{FastPath: &fakePath{base: 100}})
	lives := map[endpoint.Endpoint]bool{}
	r.control.nextHops.alive = func(ep endpoint.Endpoint) bool { return lives[ep] }
	host := r.host(udpN(1), 2)
	r.wantNextHop(host, 101)
	lives[udpN(1)] = true
	r.control.nextHops.sessionBegan(udpN(1))
	r.control.nextHops.sessionBegan(udpN(9))
	r.pump()
	r.wantNextHop(host, 0)
	lives[udpN(2)] = true
	r.bind(host, udpN(2), 2)
	r.wantNextHop(host, 0)
}

// TestNetworkChange: control asks for all next hops again before the program resumes; a further
// change begins anew.
func TestNetworkChange(t *testing.T) {
	t.Parallel()
	path := &fakePath{base: 100}
	r := newRig(t, Config{FastPath: path, Unlimited: true})
	const players = 2 * resolveBatch
	host := r.host(udpN(1), 100)
	for range players {
		if _, err := r.reserve(alloc.RoleHost, nil, "host", 1); err != nil {
			t.Fatal(err)
		}
	}
	path.base, path.generation, path.asked = 200, 5, 0
	r.control.networkChanged()
	if r.control.nextHops.update(); path.asked != 1 || len(path.resumed) != 0 {
		t.Errorf("after one round: asked for %d next hops, resumed %v", path.asked, path.resumed)
	}
	r.wantNextHop(host, 201)
	path.base, path.generation = 50, 6
	r.control.networkChanged()
	r.pump()
	r.wantNextHop(host, 51)
	if len(path.resumed) != 1 || path.resumed[0] != 6 {
		t.Errorf("resumed with %v, want 6 once", path.resumed)
	}
}

// TestKernelGrace: what the program may have seen is answered when its runs have ended, and
// meanwhile workers do not wake control. A first BIND to a free endpoint does not wait.
func TestKernelGrace(t *testing.T) {
	t.Parallel()
	r := newSlowRig(t, Config{FastPath: &fakePath{base: 100}})
	card, err := r.reserve(alloc.RoleHost, nil, "host", 4)
	if err != nil {
		t.Fatal(err)
	}
	at := r.at()
	r.feed(at, signed(card, 1, card.key))
	r.wantSent(at, proto.TypeBindReceived)

	moved := r.at()
	r.feed(moved, signed(card, 2, card.key))
	r.pump()
	r.wantSent(moved)
	if r.shared.grace.workersMustWake.Load() {
		t.Error("workers wake control while it waits for the kernel only")
	}
	r.endKernelGrace()
	r.wantSent(moved, proto.TypeBindReceived)

	r.slow.epoch.enter()
	last := r.at()
	r.feed(last, signed(card, 3, card.key))
	r.endKernelGrace()
	r.wantSent(last)
	if !r.shared.grace.workersMustWake.Load() {
		t.Error("the worker that is waited for does not wake control")
	}
	r.slow.epoch.leave()
	r.pump()
	r.wantSent(last, proto.TypeBindReceived)

	player := r.unlinked(r.at(), card)
	playerAt := r.entry(player).Endpoint
	r.connect(playerAt, player)
	r.take()
	r.feed(playerAt, message(9, player.id, card.id))
	r.wantSent(playerAt)
	r.endKernelGrace()
	r.wantSent(playerAt, proto.TypeDisconnect)
}

// TestKernelGraceRun: periods that begin while the kernel is waited for end together, by
// the next wait, not by that one.
func TestKernelGraceRun(t *testing.T) {
	t.Parallel()
	path := &fakePath{inKernel: make(chan struct{})}
	woken := make(chan struct{}, 8)
	k := newKernelGrace(path.Synchronize, func() { woken <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.run(ctx) }()

	first := k.begin()
	testkit.Eventually(t, "the goroutine waits for the kernel", func() bool { return path.synced.Load() == 1 })
	second, third := k.begin(), k.begin()
	if k.isOver(first) {
		t.Error("a period is over before the kernel says so")
	}
	path.inKernel <- struct{}{}
	<-woken
	if !k.isOver(first) || k.isOver(second) {
		t.Errorf("after the first wait: first over %t, second over %t", k.isOver(first), k.isOver(second))
	}
	path.inKernel <- struct{}{}
	<-woken
	if !k.isOver(third) || path.synced.Load() != 2 {
		t.Errorf("after the second wait: third over %t, %d waits", k.isOver(third), path.synced.Load())
	}
	cancel()
	<-ended
}
