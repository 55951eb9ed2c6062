package link

import (
	"sync"
)

// inbox is what the goroutines of a relay link hand to the caller's, in order.
// Its lock guards all of it.
type inbox struct {
	mu          sync.Mutex
	first, last *parcel
	waiting     int // datagrams
	limit       int // of waiting
	perPeer     int // of one peer's part of it, so that a loud one leaves room
	spare       []*parcel
	readers     map[Addr]*relayPeer // peers whose reader has not finished
	dropped     uint64
	sealed      bool // no goroutine may start any more
}

// parcel is a datagram or an event, in memory that is used again.
type parcel struct {
	next *parcel
	kind Kind
	peer *relayPeer
	err  error
	n    int
	buf  [MaxDatagram]byte
}

func newInbox(limit, perPeer int) inbox {
	return inbox{limit: limit, perPeer: perPeer, readers: make(map[Addr]*relayPeer)}
}

// push adds a datagram of a peer and returns the memory for the next one, which
// is the same when there is no room.
func (q *inbox) push(c *parcel, p *relayPeer) *parcel {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting >= q.limit || p.waiting >= q.perPeer {
		q.dropped++
		return c
	}
	q.waiting++
	p.waiting++
	c.kind, c.peer, c.err = Datagram, p, nil
	q.add(c)
	return q.takeLocked()
}

// tell adds an event. There is always room: each is once per peer, or once at
// all, and a NoLink or Refused that waits is not told again.
func (q *inbox) tell(kind Kind, p *relayPeer, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if (kind == NoLink || kind == Refused) && q.last != nil && q.last.kind == kind {
		return
	}
	c := q.takeLocked()
	c.kind, c.peer, c.err, c.n = kind, p, err, 0
	q.add(c)
}

func (q *inbox) add(c *parcel) {
	if q.last == nil {
		q.first = c
	} else {
		q.last.next = c
	}
	q.last = c
}

// next takes the oldest datagram or event. N may be above len(b): then the
// datagram did not fit.
func (q *inbox) next(b []byte) (Event, *relayPeer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.first
	if c == nil {
		return Event{}, nil
	}
	if q.first = c.next; q.first == nil {
		q.last = nil
	}
	e, p := Event{Kind: c.kind, N: c.n, Err: c.err}, c.peer
	if c.kind == Datagram {
		copy(b, c.buf[:c.n])
		q.waiting--
		p.waiting--
	}
	q.giveLocked(c)
	return e, p
}

// take returns empty memory.
func (q *inbox) take() *parcel {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takeLocked()
}

func (q *inbox) takeLocked() *parcel {
	last := len(q.spare) - 1
	if last < 0 {
		return new(parcel)
	}
	c := q.spare[last]
	q.spare = q.spare[:last]
	return c
}

func (q *inbox) give(c *parcel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveLocked(c)
}

func (q *inbox) giveLocked(c *parcel) {
	c.next, c.peer, c.err = nil, nil, nil
	if len(q.spare) < q.limit {
		q.spare = append(q.spare, c)
	}
}

// register makes p the peer of its address, or returns the one that is.
func (q *inbox) register(p *relayPeer) *relayPeer {
	q.mu.Lock()
	defer q.mu.Unlock()
	if earlier := q.readers[p.addr]; earlier != nil {
		return earlier
	}
	q.readers[p.addr] = p
	return nil
}

func (q *inbox) unregister(p *relayPeer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.readers, p.addr)
}

// seal keeps goroutines from starting.
func (q *inbox) seal() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sealed = true
}

// lost returns how many datagrams found no room.
func (q *inbox) lost() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}
