package cluster

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// rememberFor is how long a reservation is remembered by its key. An API
	// gives up after 2 s and cancels what it gave up within cancelFor, and a
	// reservation that nobody binds lapses after 10 s anyway.
	rememberFor = 10 * time.Second
	// maxRunning bounds the reservations under way, which answers the next one
	// with "busy": a relay that is that far behind helps nobody by taking more.
	maxRunning = 1024
	// maxRemembered bounds the keys that are remembered besides, below 30 MiB in
	// all. Beyond it the oldest is forgotten early: at 5,000 reservations a
	// second after 6 s, which is three times as long as anybody asks again.
	maxRemembered = 32768
)

// outcome is what became of a reservation.
type outcome struct {
	res *alloc.Reservation // nil: none
	err error
}

// attempt is one reservation, by its key. Its fields are memory's, but for done.
type attempt struct {
	asked [sha256.Size]byte // digest of call and body; a cancelled stranger has none
	done  chan struct{}     // closed when the outcome is there
	outcome
	id        proto.AllocationID // of the reservation, also once it was cancelled
	cancelled bool
	overdue   bool // somebody was told that it did not come in time
	stranger  bool // cancelled before it came
	ended     bool // cancelled, and there is nothing left to end
}

// memory remembers what became of reservations, so that one that is sent twice
// is made once, and one that was given up can be ended.
type memory struct {
	mu      sync.Mutex // guards the following fields and those of attempts; held for no call
	running int
	by      map[key]*attempt
	ring    []kept // of at most its length, oldest at head
	head, n int
	forgot  uint64 // before their time
}

// kept says until when an outcome is remembered, in time since the server was
// made.
type kept struct {
	key   key
	until time.Duration
}

func newMemory(most int) *memory {
	return &memory{by: make(map[key]*attempt), ring: make([]kept, most)}
}

// begin returns the attempt with that key, and whether it is new, so that the
// caller has to make it and to call settle.
func (m *memory) begin(k key, asked [sha256.Size]byte, now time.Duration) (a *attempt, isNew bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(now)
	if a, ok := m.by[k]; ok {
		switch {
		case a.stranger:
			return nil, false, cancelled.because("the reservation was cancelled before it came")
		case a.asked != asked:
			return nil, false, keyReused.because("the key was used for another call")
		}
		return a, false, nil
	}
	if m.running >= maxRunning {
		return nil, false, tooMany.because("%d reservations are under way", m.running)
	}
	m.running++
	a = &attempt{asked: asked, done: make(chan struct{})}
	m.by[k] = a
	return a, true, nil
}

// settle notes what became of an attempt. It returns true if its reservation
// has to be ended, because it was cancelled meanwhile or came too late; whoever
// waits for it then gets no reservation.
func (m *memory) settle(k key, a *attempt, o outcome, late bool, now time.Duration) (end bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if o.res != nil {
		a.id = o.res.ID
		end = late || a.overdue || a.cancelled
	}
	switch {
	case a.cancelled:
		o = outcome{err: cancelled.because("the reservation was cancelled")}
	case end:
		a.cancelled = true // what a late cancellation finds ended
		o = outcome{err: unavailable.because("the reservation was made after its deadline, and ended")}
	}
	a.outcome = o
	a.ended = !end && o.res == nil
	close(a.done)
	m.keep(k, now)
	return end
}

// outcome returns what became of an attempt that is done. The reservation does
// not change.
func (m *memory) outcome(a *attempt) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return a.outcome
}

// giveUp returns what became of an attempt after all, or makes sure that, where
// its caller is told that it did not come in time, nobody gets it later.
func (m *memory) giveUp(a *attempt) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-a.done:
		return a.outcome
	default:
		a.overdue = true
		return outcome{err: unavailable.because("the relay did not answer within the deadline")}
	}
}

// cancel makes sure that nobody gets the reservation of that key any more, now
// or later. It returns its id if it is there to be ended.
func (m *memory) cancel(k key, now time.Duration) (id proto.AllocationID, end bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(now)
	a, ok := m.by[k]
	if !ok {
		m.by[k] = &attempt{cancelled: true, stranger: true, ended: true}
		m.keep(k, now)
		return proto.AllocationID{}, false
	}
	a.cancelled = true
	if a.ended || a.id.IsZero() {
		return proto.AllocationID{}, false // or settle ends it
	}
	a.outcome = outcome{err: cancelled.because("the reservation was cancelled")}
	return a.id, true
}

// gone notes that the reservation of a cancelled attempt has ended.
func (m *memory) gone(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.by[k]; ok {
		a.ended = true
	}
}

// keep remembers an outcome from now on. The caller holds mu.
func (m *memory) keep(k key, now time.Duration) {
	if m.n == len(m.ring) {
		m.forgot++
		m.pop()
	}
	m.ring[(m.head+m.n)%len(m.ring)] = kept{k, now + rememberFor}
	m.n++
}

// expire forgets what is over. The caller holds mu.
func (m *memory) expire(now time.Duration) {
	for m.n > 0 && m.ring[m.head].until <= now {
		m.pop()
	}
}

// pop forgets the oldest outcome. The caller holds mu, and there is one.
func (m *memory) pop() {
	delete(m.by, m.ring[m.head].key)
	m.ring[m.head] = kept{}
	m.head = (m.head + 1) % len(m.ring)
	m.n--
}

// sweep forgets what is over, where nobody calls: the outcomes hold keys.
func (m *memory) sweep(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(now)
}

// sizes returns how many reservations are under way and remembered, and how
// many were forgotten before their time.
func (m *memory) sizes() (running, remembered int, forgot uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running, m.n, m.forgot
}
