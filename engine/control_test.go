package engine

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// fill pushes commands of a class, each of another bucket than the last, until
// one does not go in, and returns how many did and why it did not.
func (b *inbox) fill(q class, now int64) (n int, why outcome) {
	for ; ; n++ {
		if _, why = b.push(q, &command{bucket: uint8(n), now: now}); why != outcomePending {
			return n, why
		}
	}
}

func (b *inbox) drain(execute func(*command)) bool {
	ready, bit := b.ready, b.bit
	var all inboxes
	all.add(b)
	b.ready.Store(b.bit)
	all.drain(new(actionQueue), execute)
	b.ready, b.bit = ready, bit
	return all.hasMore(new(actionQueue))
}

// TestInboxClasses: commands of one class do not keep those of the other out,
// and control takes both, three to one.
func TestInboxClasses(t *testing.T) {
	t.Parallel()
	for full, other := range map[class]class{known: fresh, fresh: known} {
		b := newInbox(false)
		n, why := b.fill(full, 0)
		if n != len(b.rings[full].slots) || why != dropBusy {
			t.Errorf("class %d took %d commands, then %v", full, n, why)
		}
		if _, why := b.push(other, &command{}); why != outcomePending {
			t.Errorf("class %d is full, and a command of the other: %v", full, why)
		}
		b.fill(other, 0)
		want := [2]int{knownPerRound, freshPerRound}
		for range 3 {
			before := [2]int{b.rings[known].size(), b.rings[fresh].size()}
			decided := 0
			if !b.drain(func(*command) { decided++ }) {
				t.Error("more waits, and pump says no")
			}
			for q := range want {
				if got := before[q] - b.rings[q].size(); got != want[q] {
					t.Errorf("%d of class %d were decided, want %d", got, q, want[q])
				}
			}
			if decided != knownPerRound+freshPerRound {
				t.Errorf("%d were decided", decided)
			}
		}
		for b.drain(func(*command) {}) {
		}
		for q := range b.queued {
			for i := range b.queued[q] {
				if n := b.queued[q][i].Load(); n != 0 {
					t.Errorf("class %d, bucket %d: %d are held of none that wait", q, i, n)
				}
			}
		}
	}
}

func TestInboxPending(t *testing.T) {
	t.Parallel()
	b := newInbox(false)
	if b.isPending(0) {
		t.Error("no command is pending")
	}
	var numbers [2][]uint64
	for i := range 200 {
		q := class(i % 2)
		n, why := b.push(q, &command{bucket: uint8(i)})
		if why != outcomePending || n == 0 || !b.isPending(n) {
			t.Fatalf("command %d: number %d, %v, pending %v", i, n, why, b.isPending(n))
		}
		numbers[q] = append(numbers[q], n)
	}
	b.drain(func(*command) {})
	for q, decided := range [2]int{knownPerRound, freshPerRound} {
		for i, n := range numbers[q] {
			if b.isPending(n) != (i >= decided) {
				t.Errorf("class %d, command %d: pending %v", q, i, b.isPending(n))
			}
		}
	}
}

// TestInboxLoad: a ring that is an eighth full, or a full batch, means load for a second.
func TestInboxLoad(t *testing.T) {
	t.Parallel()
	for q, size := range map[class]int{known: knownRing, fresh: freshRing} {
		b := newInbox(false)
		for i := range size/8 - 1 {
			b.push(q, &command{bucket: uint8(i)})
		}
		if b.isUnderLoad(1000) {
			t.Errorf("class %d: under load with %d of %d", q, size/8-1, size)
		}
		b.push(q, &command{bucket: 200})
		if !b.isUnderLoad(1000) || !b.isUnderLoad(1500) {
			t.Errorf("class %d: not under load with %d of %d", q, size/8, size)
		}
		b.drain(func(*command) {})
		if !b.isUnderLoad(1500+underLoadMillis-1) || b.isUnderLoad(1500+underLoadMillis) {
			t.Errorf("class %d: load does not last for a second", q)
		}
	}
	b := newInbox(false)
	b.noteLoad(5000)
	b.noteLoad(5200)
	if !b.isUnderLoad(5200+underLoadMillis-1) || b.isUnderLoad(5200+underLoadMillis) {
		t.Error("a full batch is no sign of load for a second")
	}
}

// TestInboxBuckets: a bucket has no bound without load, and with it a share in each class.
func TestInboxBuckets(t *testing.T) {
	t.Parallel()
	b := newInbox(false)
	push := func(q class, share uint8, now int64) outcome {
		_, why := b.push(q, &command{bucket: share, now: now})
		return why
	}
	for range bucketLimit + 10 {
		if why := push(known, 7, 0); why != outcomePending {
			t.Fatal("without load: ", why)
		}
	}
	b.noteLoad(0)
	if why := push(known, 7, 0); why != dropLoad {
		t.Error("more than its share: ", why)
	}
	for range bucketLimit {
		if why := push(fresh, 7, 0); why != outcomePending {
			t.Fatal("of the other class: ", why)
		}
	}
	if why := push(fresh, 7, 0); why != dropLoad {
		t.Error("more than its share of the other class: ", why)
	}
	if why := push(known, 8, 0); why != outcomePending {
		t.Error("another bucket: ", why)
	}
	b.drain(func(*command) {})
	if why := push(known, 7, 0); why != outcomePending {
		t.Error("after all were decided: ", why)
	}
}

// loadTest is a hundred regular players, and one prefix with twenty hostile ones.
type loadTest struct {
	*rig
	honest, hostile     []*mReservation
	honestAt, hostileAt []endpoint.Endpoint
}

// newLoadTest makes relays until the hostile prefix shares its bucket with no other source.
func newLoadTest(t *testing.T) *loadTest {
	t.Helper()
	for {
		s := &loadTest{rig: newRig(t, Config{})}
		host, buckets, cells := s.host(udpN(clientsHost), 100), map[uint8]bool{}, map[uint64]bool{}
		for i := range 20 {
			ep := endpoint.UDP(netip.AddrPortFrom(netip.MustParseAddr("203.0.113.66"), uint16(50_000+i)), 0, 0)
			card := s.unlinked(ep, host)
			s.hostile, s.hostileAt = append(s.hostile, card), append(s.hostileAt, ep)
			buckets[uint8(s.shared.budgets.prefixIndex(ep))] = true
			for _, c := range s.cells(card, ep) {
				cells[c] = true
			}
		}
		apart := true
		for i := range 100 {
			card := s.unlinked(udpN(i), host)
			s.honest, s.honestAt = append(s.honest, card), append(s.honestAt, udpN(i))
			own := s.cells(card, udpN(i))
			apart = apart && !buckets[uint8(s.shared.budgets.prefixIndex(udpN(i)))] && !cells[own[0]] && !cells[own[1]]
		}
		if apart {
			return s
		}
	}
}

// cells are the gates of signatures that a BIND draws on.
func (s *loadTest) cells(card *mReservation, from endpoint.Endpoint) [2]uint64 {
	at := binary.LittleEndian.Uint64(card.id[:8]) ^ s.shared.budgets.secret
	return [2]uint64{endpoint.Mix64(at+s.shared.budgets.prefixIndex(from)) >> (64 - 13), endpoint.Mix64(^at) >> (64 - 13)}
}

// TestFairness: a prefix that sends as much as it can does not delay the commands of others.
func TestFairness(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	const flood, rounds = 2000, 60
	r := newLoadTest(t)
	players, enemies, cards := r.honest, r.hostileAt, r.hostile
	before, nonce := r.counted(outBound), uint16(2)
	for range rounds {
		for _, w := range r.workers {
			w.inbox.noteLoad(r.now)
		}
		nonce++
		for i := range flood { // as many BINDs as fill all rings many times
			k := i % len(enemies)
			r.step(enemies[k], signed(cards[k], nonce+uint16(i), cards[k].key))
			if each := flood / len(players); i%each == 0 {
				p := i / each
				if o := r.step(udpN(p), signed(players[p], nonce, players[p].key)); o != outcomePending {
					t.Fatalf("honest player %d: %v", p, o)
				}
			}
		}
		r.now += 300
		r.pump()
		for i, p := range players {
			if e := r.entry(p); e.Nonce != nonce {
				t.Fatalf("player %d was not decided: nonce %d, want %d", i, e.Nonce, nonce)
			}
		}
	}
	if dropped := r.counted(dropLoad) + r.counted(dropNonce); dropped < flood*rounds/2 {
		t.Errorf("of the flood only %d datagrams were dropped", dropped)
	}
	t.Logf("%d BINDs decided, %d dropped", r.counted(outBound)-before, r.counted(dropLoad))
}

// TestVerifyUnderFlood: BINDs with wrong signatures from very many sources do not keep the owner
// from binding again at home, and cost 200 signature checks a second.
func TestVerifyUnderFlood(t *testing.T) {
	t.Parallel()
	const seconds, perMilli = 30, 20
	r := newRig(t, Config{})
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 2))
	home := netip.MustParseAddr("203.0.113.5")
	at := func(port int) endpoint.Endpoint { return endpoint.UDP(netip.AddrPortFrom(home, uint16(port)), 0, 0) }
	card := r.host(at(40_000), 4)
	e := r.entry(card)
	refused, checked := 0, 0
	for i := range seconds * 1000 {
		for range perMilli {
			ip := netip.AddrFrom4([4]byte{11, byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())})
			if r.shared.budgets.mayVerify(r.now, endpoint.UDP(netip.AddrPortFrom(ip, 9999), 0, 0), e.ID, &e) {
				checked++
			}
		}
		if r.now++; i%1000 == 999 && !r.shared.budgets.mayVerify(r.now, at(41_000+i), e.ID, &e) {
			refused++
		}
	}
	// One in 4,096 sources shares the gate of the home, and may verify as it does.
	if most := seconds*(200+20) + 200 + 20; checked > most || checked < seconds*150 {
		t.Errorf("%d signatures of unknown senders were checked in %d s, want %d at the most", checked, seconds, most)
	}
	if refused > seconds/5 {
		t.Errorf("%d of %d BINDs of the owner were refused", refused, seconds)
	}
}

// TestVerifyPerPrefix: one prefix gets 20 signature checks a second, also for the owner there;
// other prefixes are not affected.
func TestVerifyPerPrefix(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	card := r.host(udpN(0), 4)
	e := r.entry(card)
	count := func(from endpoint.Endpoint, each int) (n int) {
		for range 10_000 {
			r.now++
			for range each {
				if r.shared.budgets.mayVerify(r.now, from, e.ID, &e) {
					n++
				}
			}
		}
		return n
	}
	for i, from := range []endpoint.Endpoint{udpN(0), udpN(1)} {
		if n := count(from, 3); n < 200 || n > 225 {
			t.Errorf("prefix %d: %d in 10 s, want 220", i, n)
		}
	}
	unbound := table.Entry{ID: e.ID}
	if !r.shared.budgets.mayVerify(r.now+5000, udpN(0), unbound.ID, &unbound) {
		t.Error("an allocation without an endpoint cannot bind")
	}
}

// TestControlTicks: control looks four times a second while something may expire soon, and else once: then it is not
// stalled. Whatever expires does so on time.
func TestControlTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		c, began := r.control, time.Now()
		var ticks sync.Map // by the time in ms
		r.shared.clock = func() int64 {
			r.now = clockStart + time.Since(began).Milliseconds()
			ticks.Store(r.now, true)
			return r.now
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		pass := func(when string, d time.Duration, want int) {
			t.Helper()
			ticks.Clear()
			time.Sleep(d)
			synctest.Wait()
			got := 0
			ticks.Range(func(any, any) bool { got++; return true })
			if got < want-1 || got > want+1 {
				t.Errorf("%s: %d ticks in %v, want %d", when, got, d, want)
			}
		}
		onControl := func(do func()) {
			called := &call{do: func(*control) error { do(); return nil }, done: make(chan error, 1)}
			c.calls <- called
			<-called.done
		}
		pass("nothing is there", 10*time.Second, 10)
		for range 3 {
			onControl(func() {
				r.shared.clock()
				if _, err := r.reserve(alloc.RoleHost, nil, "player", 1); err != nil {
					t.Error(err)
				}
			})
			pass("it has ten seconds", 7*time.Second, 7)
			pass("it expires soon", 3*time.Second, 6)
			if len(r.ended) != 0 {
				t.Error("it ended too early")
			}
			pass("it has expired", time.Second, 2)
			if len(r.ended) != 1 {
				t.Error("it did not end on time")
			}
			r.ended = nil
			pass("nothing is there any more", 10*time.Second, 10)
		}
		for range 5 { // A delay of less than a second is no stall, wherever it begins.
			onControl(func() { time.Sleep(700 * time.Millisecond) })
			time.Sleep(370 * time.Millisecond)
		}
		if n := c.pause.stallsTotal.Load(); n != 0 {
			t.Errorf("%d stalls", n)
		}
		onControl(func() { time.Sleep(3 * time.Second) })
		pass("after a stall", 10*time.Second, 10)
		if n := c.pause.stallsTotal.Load(); n != 1 {
			t.Errorf("%d stalls, want 1", n)
		}
		cancel()
		running.Wait()
	})
}
