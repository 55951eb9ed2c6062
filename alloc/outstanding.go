package alloc

import (
	"sync"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// maxOutstandingKnown bounds the reservations that are remembered at once, in
// all: below 9 MiB. Beyond it the oldest stops counting early, which forgives
// a hoarder a little and refuses nobody: memory is the harder limit.
const maxOutstandingKnown = 65536

// outstanding counts, by player, the allocations that were reserved and have
// not been bound, so that nobody hoards them (reliability-security.md 4.8, H2).
// A reservation stops counting when it is bound, when it ends, and after the
// relay's bind time-out, whichever is heard of first. In a fleet nobody tells an
// API process of binds and of ends, so that there each counts for the whole
// time-out: who begins and ends more matches in it than it may have outstanding
// waits for seconds. Relays tell the store of hosts alone, some seconds late; to
// tell of each bind would cost a message per player.
type outstanding struct {
	timeout time.Duration // how long a reservation counts

	mu      sync.Mutex           // guards the following fields; held for no call
	most    int                  // of one player
	players map[PlayerHash]int32 // how many count; calls under way are among them
	waiting map[proto.AllocationID]PlayerHash
	lapses  []lapse // ring of at most its length, oldest at head
	head, n int
}

// lapse says when a reservation stops counting, in time since the service was
// made. Since all count equally long, the ring is in the order of time.
type lapse struct {
	id proto.AllocationID
	at time.Duration
}

func newOutstanding(most int, timeout time.Duration, known int) *outstanding {
	return &outstanding{
		most: most, timeout: timeout,
		players: make(map[PlayerHash]int32),
		waiting: make(map[proto.AllocationID]PlayerHash),
		lapses:  make([]lapse, known),
	}
}

// begin counts a reservation that is about to be made. It reports false, and
// counts nothing, when the player has as many as it may.
func (o *outstanding) begin(p PlayerHash, now time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.n > 0 && o.lapses[o.head].at <= now {
		o.pop()
	}
	if int(o.players[p]) >= o.most {
		return false
	}
	o.players[p]++
	return true
}

// bound changes how many one player may have.
func (o *outstanding) bound(most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.most = most
}

// cancel takes back a begin whose reservation was not made.
func (o *outstanding) cancel(p PlayerHash) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.release(p)
}

// made names the reservation of a begin.
func (o *outstanding) made(p PlayerHash, id proto.AllocationID, now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == len(o.lapses) {
		o.pop()
	}
	o.lapses[(o.head+o.n)%len(o.lapses)] = lapse{id: id, at: now + o.timeout}
	o.n++
	o.waiting[id] = p
}

// settle ends the count of a reservation. Ids that do not count do no harm.
func (o *outstanding) settle(id proto.AllocationID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(id)
}

// pop forgets the oldest reservation. The caller holds mu, and there is one.
func (o *outstanding) pop() {
	o.drop(o.lapses[o.head].id)
	o.head = (o.head + 1) % len(o.lapses)
	o.n--
}

func (o *outstanding) drop(id proto.AllocationID) {
	if p, ok := o.waiting[id]; ok {
		delete(o.waiting, id)
		o.release(p)
	}
}

func (o *outstanding) release(p PlayerHash) {
	if o.players[p] <= 1 {
		delete(o.players, p)
		return
	}
	o.players[p]--
}
