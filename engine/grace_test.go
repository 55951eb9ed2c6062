package engine

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type slowRig struct {
	*rig
	slow *worker
	used int
}

func newSlowRig(t *testing.T, cfg Config) *slowRig {
	r := newRig(t, cfg)
	return &slowRig{rig: r, slow: r.workers[0]}
}

func (r *slowRig) at() endpoint.Endpoint {
	for {
		r.used++
		if ep := udpN(r.used); r.worker(ep) != r.slow {
			return ep
		}
	}
}

func (r *slowRig) wantSent(to endpoint.Endpoint, want ...proto.Type) {
	r.t.Helper()
	var got []proto.Type
	for _, s := range r.take() {
		if s.to == to {
			typ, _ := proto.ParseType(s.pkt)
			got = append(got, typ)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("sent %v, want %v", got, want)
	}
}

func (r *slowRig) connect(from endpoint.Endpoint, joiner *mReservation) {
	r.feed(from, connectMessage(joiner.id, joiner.ticket))
}

// TestSlowWorker: while a worker handles a batch, replies leave that need no grace
// period, and those that need one wait for it.
func TestSlowWorker(t *testing.T) {
	t.Parallel()
	r := newSlowRig(t, Config{})
	away := r.at()
	host := r.host(r.at(), 2)
	player := r.unlinked(away, host)
	r.take()

	r.slow.epoch.enter()
	r.connect(away, player)
	r.wantSent(away, proto.TypeAccepted)
	r.feed(away, signed(player, 7, player.key))
	r.wantSent(away, proto.TypeBindReceived)

	moved := r.at()
	r.feed(moved, signed(player, 8, player.key))
	r.wantSent(moved)
	// What follows for this endpoint must not overtake the BIND_RECEIVED.
	r.connect(moved, player)
	r.wantSent(moved)
	r.slow.epoch.leave()
	r.pump()
	r.wantSent(moved, proto.TypeBindReceived, proto.TypeAccepted)
}

// TestGracePeriodsOverlap: a period waits for the batches of its beginning only, not for
// those that began while an earlier period ran.
func TestGracePeriodsOverlap(t *testing.T) {
	t.Parallel()
	r := newSlowRig(t, Config{})
	host := r.host(r.at(), 2)
	r.take()
	first, second := r.at(), r.at()
	r.slow.epoch.enter()
	r.feed(first, signed(host, 8, host.key))
	r.feed(second, signed(host, 9, host.key))
	r.wantSent(second)
	r.slow.epoch.leave()
	r.slow.epoch.enter() // The next batch begins before control looks, and takes long.
	r.pump()
	r.wantSent(second, proto.TypeBindReceived)
	third := r.at()
	r.feed(third, signed(host, 10, host.key))
	r.wantSent(third)
	r.slow.epoch.leave()
	r.pump()
	r.wantSent(third, proto.TypeBindReceived)
}

func TestManyGracePeriods(t *testing.T) {
	t.Parallel()
	r := newSlowRig(t, Config{})
	host := r.host(r.at(), 2)
	r.slow.epoch.enter()
	var last endpoint.Endpoint
	for i := range 3 * maxPeriods {
		last = r.at()
		r.now += 300
		r.feed(last, signed(host, uint16(10+i), host.key))
	}
	r.take()
	r.slow.epoch.leave()
	r.pump()
	r.wantSent(last, proto.TypeBindReceived)
	if n := r.control.queue.len(); n != 0 {
		t.Errorf("%d actions are left", n)
	}
}

// TestQueueBound: BINDs that move fill the queue of actions and then the rings. All that was
// accepted is answered after the batch.
func TestQueueBound(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	r := newSlowRig(t, Config{Unlimited: true})
	const players = 64
	var cards []*mReservation
	var at [players][2]endpoint.Endpoint
	host := r.host(r.at(), 100)
	for i := range at {
		at[i] = [2]endpoint.Endpoint{r.at(), r.at()}
		cards = append(cards, r.unlinked(at[i][0], host))
	}
	late, err := r.reserve(alloc.RoleJoiner, host, "late", 0)
	if err != nil {
		t.Fatal(err)
	}
	lateAt := r.at()
	r.take()
	r.slow.epoch.enter()
	accepted, refused, most, before := 0, 0, 0, r.counted(outBound)
	for i := 0; refused < 100; i++ {
		k, round := i%players, i/players
		switch o := r.feed(at[k][(round+1)%2], signed(cards[k], uint16(10+round), cards[k].key)); o {
		case outcomePending:
			accepted++
		case dropBusy:
			refused++
		default:
			t.Fatalf("BIND %d: %v", i, o)
		}
		if most = max(most, r.control.queue.len()); most >= maxFreshActions && i%1000 == 0 {
			if o := r.feed(lateAt, signed(late, 1, late.key)); o == outcomePending {
				accepted++
			}
		}
		if i > 2*maxActions {
			t.Fatalf("nothing is refused with %d actions", most)
		}
	}
	if most < maxActions || most > maxActions+knownPerRound {
		t.Errorf("%d actions at most, want %d", most, maxActions)
	}
	if e := r.entry(late); e.Is(table.EverBound) {
		t.Error("a first BIND was executed although half of the queue was in use")
	}
	r.slow.epoch.leave()
	r.pump()
	if n := r.control.queue.len(); n != 0 || cap(r.control.queue.actions) > keptActions {
		t.Errorf("%d actions are left, room for %d", n, cap(r.control.queue.actions))
	}
	if e := r.entry(late); !e.Is(table.EverBound) {
		t.Error("the first BIND was lost")
	}
	// Two workers have the BINDs of a player, so one may come after a later one.
	bound, stale := int(r.counted(outBound)-before), int(r.counted(dropNonce))
	if n := len(r.take()); n != bound || bound+stale != accepted || stale > accepted/10 {
		t.Errorf("%d BINDs were accepted, %d bound and %d stale, %d answered", accepted, bound, stale, n)
	}
}

func TestInboxesLoseNothing(t *testing.T) {
	t.Parallel()
	const workers, each = 70, 3000
	var s inboxes
	all := make([]*inbox, workers)
	for i := range all {
		all[i] = newInbox(true)
		s.add(all[i])
	}
	var running sync.WaitGroup
	for _, b := range all {
		running.Go(func() {
			for n := 0; n < each; {
				if _, o := b.push(class(n%2), &command{nonce: uint16(n)}); o == outcomePending {
					n++
				} else {
					runtime.Gosched()
				}
			}
		})
	}
	executed, deadline := 0, time.Now().Add(time.Minute)
	for executed < workers*each && time.Now().Before(deadline) {
		s.drain(new(actionQueue), func(*command) { executed++ })
		runtime.Gosched()
	}
	running.Wait()
	if executed != workers*each || s.hasMore(new(actionQueue)) {
		t.Errorf("%d executed of %d", executed, workers*each)
	}
}

// TestInboxesOrder: each round begins with another inbox.
func TestInboxesOrder(t *testing.T) {
	t.Parallel()
	const workers = 130
	var s inboxes
	var all [workers]*inbox
	for i := range all {
		all[i] = newInbox(true)
		s.add(all[i])
	}
	for round := range 2 * workers {
		ready := []int{3, 63, 64, 129}
		for _, i := range ready {
			all[i].push(known, &command{nonce: uint16(i)})
		}
		want := 0
		for want < len(ready) && ready[want] < round%workers {
			want++
		}
		var got []uint16
		s.drain(new(actionQueue), func(c *command) { got = append(got, c.nonce) })
		if len(got) != len(ready) || int(got[0]) != ready[want%len(ready)] {
			t.Fatalf("round %d: %v", round, got)
		}
	}
}
