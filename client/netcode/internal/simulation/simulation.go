// Package simulation puts a bad network in front of a link, for tests and a game's trials.
package simulation

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// maxPull bounds how many datagrams one Receive takes off the link below, so
// that a flood which is all lost or delayed does not hold up a tick.
const maxPull = 4096

// Config says what a Link does.
type Config struct {
	// Seed makes the chance; each value, 0 too, is as good as another.
	Seed uint64
	// Out is for what is sent, In for what is received.
	Out, In link.Conditions
	// Queue is how many datagrams of one direction may be delayed at a time
	// before the newest is dropped. 0 means 4096, 6 MB when full.
	Queue int
}

// Link is a link with a bad network in front of it. It belongs to one goroutine, that of the
// link below, which it owns. What is delayed comes out with an Advance: the resolution is the tick.
//
// The same seed, conditions, times and calls over a link that behaves the same give the same
// datagrams. Each datagram draws the same number of random values, and each direction has its own, so
// that a change of one condition leaves the luck of the others as it was.
type Link struct {
	link.Link
	out, in direction
	start   time.Time             // of the first Advance, the zero of now
	now     int64                 // ns
	leaving map[address.Addr]bool // peers whose Disconnect is delayed: nothing of them is wanted
	scratch [link.MaxDatagram]byte
	closed  bool
}

var _ link.Link = (*Link)(nil)

// Simulate puts a bad network in front of a link, the same in both directions. Its chance follows
// from the link's address. Errors wrap link.ErrConditions; the link remains the caller's then.
func Simulate(inner link.Link, c link.Conditions) (*Link, error) {
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, inner.Local().String())
	return New(inner, Config{Seed: seed.Sum64(), Out: c, In: c})
}

// New is Simulate with conditions of each direction and a seed. Errors wrap link.ErrConditions;
// the link remains the caller's then.
func New(inner link.Link, cfg Config) (*Link, error) {
	if err := cfg.Out.Check(); err != nil {
		return nil, err
	}
	if err := cfg.In.Check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Queue < 0:
		return nil, fmt.Errorf("%w: Queue is negative", link.ErrConditions)
	case cfg.Queue == 0:
		cfg.Queue = 4096
	}
	return &Link{
		Link:    inner,
		out:     newDirection(cfg.Out, cfg.Seed, 0, cfg.Queue),
		in:      newDirection(cfg.In, cfg.Seed, 1, cfg.Queue),
		leaving: make(map[address.Addr]bool),
	}, nil
}

// Unwrap returns the link below.
func (s *Link) Unwrap() link.Link { return s.Link }

// SetOut is for what is sent from now on. Errors wrap link.ErrConditions.
func (s *Link) SetOut(p link.Conditions) error {
	err := p.Check()
	if err == nil {
		s.out.set(p)
	}
	return err
}

// SetIn is SetOut for datagrams that are received.
func (s *Link) SetIn(p link.Conditions) error {
	err := p.Check()
	if err == nil {
		s.in.set(p)
	}
	return err
}

// Counts returns what became of the datagrams of each direction.
func (s *Link) Counts() (out, in Counts) { return s.out.snapshot(), s.in.snapshot() }

// Advance sends what has become due. Time that goes back stands still here.
func (s *Link) Advance(now time.Time) {
	if s.start.IsZero() {
		s.start = now
	}
	s.now = max(s.now, int64(now.Sub(s.start)))
	s.Link.Advance(now)
	if !s.closed {
		s.release(s.now)
	}
}

func (s *Link) release(now int64) {
	for it := s.out.queue.pop(now); it != nil; it = s.out.queue.pop(now) {
		if it.event.Kind == link.Left {
			s.Link.Disconnect(it.event.Addr)
			delete(s.leaving, it.event.Addr)
		} else {
			s.forward(it.event.Addr, it.bytes())
		}
		s.out.queue.give(it)
	}
}

// forward drops the error, which the link below counts as a loss.
func (s *Link) forward(to address.Addr, b []byte) {
	if s.Link.Send(to, b) == nil {
		s.out.counts.Passed++
	}
}

// Send reports no loss of the bad network, and no error of the link below about
// a delayed datagram.
func (s *Link) Send(to address.Addr, b []byte) error {
	switch {
	case s.closed:
		return net.ErrClosed
	case len(b) > link.MaxDatagram:
		return link.ErrTooLarge
	}
	v := s.out.judge(s.now, len(b))
	if v.lost {
		return nil
	}
	if v.corrupt {
		b = s.scratch[:copy(s.scratch[:], b)]
		s.out.corrupt(b)
	}
	err := s.put(to, b, v.due)
	if v.duplicate {
		s.out.counts.Duplicated++
		_ = s.put(to, b, v.copyDue)
	}
	return err
}

func (s *Link) put(to address.Addr, b []byte, due int64) error {
	if due > s.now {
		s.out.hold(to, b, due)
		return nil
	}
	err := s.Link.Send(to, b)
	if err == nil {
		s.out.counts.Passed++
	}
	return err
}

// Receive returns what has come through the bad network. An event about a peer
// comes after the datagrams that were received before it, however delayed.
func (s *Link) Receive(b []byte) link.Event {
	for range maxPull {
		if s.closed {
			return link.Event{}
		}
		if it := s.in.queue.pop(s.now); it != nil {
			if e, ok := s.hand(it, b); ok {
				return e
			}
			continue
		}
		e := s.Link.Receive(b)
		if e.Kind == link.Nothing {
			return e
		}
		if s.leaving[e.Addr] {
			continue
		}
		if e.Kind != link.Datagram {
			if s.in.follow(e) {
				continue
			}
			return e
		}
		if s.arrive(e, b[:e.N]) {
			s.in.counts.Passed++
			return e
		}
	}
	return link.Event{}
}

// hand is false when the caller's buffer is too small.
func (s *Link) hand(it *item, b []byte) (link.Event, bool) {
	e := it.event
	fits := e.N <= len(b)
	if e.Kind == link.Datagram && fits {
		copy(b, it.bytes())
		s.in.counts.Passed++
	}
	s.in.queue.give(it)
	return e, fits
}

// arrive is true for a datagram that goes on to the caller at once.
func (s *Link) arrive(e link.Event, b []byte) bool {
	v := s.in.judge(s.now, len(b))
	if v.lost {
		return false
	}
	if v.corrupt {
		s.in.corrupt(b)
	}
	now := v.due <= s.now
	if !now {
		s.in.hold(e.Addr, b, v.due)
	}
	if v.duplicate {
		s.in.counts.Duplicated++
		s.in.hold(e.Addr, b, v.copyDue)
	}
	return now
}

// Disconnect ends the connection to a peer when all that was sent before has
// left. What of the peer is delayed on its way in is dropped.
func (s *Link) Disconnect(peer address.Addr) {
	s.in.forget(peer)
	if !s.out.follow(link.Event{Kind: link.Left, Addr: peer}) {
		s.Link.Disconnect(peer)
		return
	}
	s.leaving[peer] = true
}

// Dial is that of the link below, without a simulation.
func (s *Link) Dial() error {
	if s.closed {
		return net.ErrClosed
	}
	return s.Link.Dial()
}

// Close sends what is delayed on its way out, and closes the link below.
func (s *Link) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.release(s.out.latest)
	s.Link.Flush()
	return s.Link.Close()
}

// Counts is what became of the datagrams of one direction.
type Counts struct {
	Passed     uint64 // came out at the other side, copies counted
	Lost       uint64 // by Loss
	LostEvery  uint64 // by LossEvery
	TooLarge   uint64 // above MTU
	QueueFull  uint64 // delayed, but Config.Queue others were already
	Corrupted  uint64
	Duplicated uint64
	Reordered  uint64
	Waiting    int // delayed at this moment, events counted too
}

type direction struct {
	params link.Conditions
	dice   dice
	queue  queue
	limit  int
	seen   int   // datagrams since LossEvery was set
	last   int64 // the latest due of all so far that were not held back
	latest int64 // the latest due of all so far
	floor  int64 // nothing may become due before the newest event
	counts Counts
}

func newDirection(p link.Conditions, seed, stream uint64, limit int) direction {
	return direction{params: p, dice: newDice(seed, stream), limit: limit}
}

func (d *direction) set(p link.Conditions) {
	d.params, d.seen = p, 0
}

type verdict struct {
	lost, corrupt, duplicate bool
	due, copyDue             int64
}

// judge decides, with the same number of throws each time.
func (d *direction) judge(now int64, size int) verdict {
	f, p := d.dice.throw(), &d.params
	every := d.strikes()
	switch {
	case p.MTU > 0 && size > p.MTU:
		d.counts.TooLarge++
		return verdict{lost: true}
	case every:
		d.counts.LostEvery++
		return verdict{lost: true}
	case hits(f.loss, p.Loss):
		d.counts.Lost++
		return verdict{lost: true}
	}
	v := verdict{corrupt: hits(f.corrupt, p.Corrupt), duplicate: hits(f.duplicate, p.Duplicate)}
	v.due = d.due(now, f.jitter)
	d.last = max(d.last, v.due)
	if hits(f.reorder, p.Reorder) {
		by := p.ReorderBy
		if by == 0 {
			by = 40 * time.Millisecond // longer than a tick at 60 per second and shorter than at 20
		}
		v.due += 1 + within(f.hold, int64(by))
		d.counts.Reordered++
	}
	d.latest = max(d.latest, v.due)
	if v.duplicate {
		v.copyDue = d.due(now, f.copyJitter)
		d.last = max(d.last, v.copyDue)
		d.latest = max(d.latest, v.copyDue)
	}
	return v
}

// strikes counts from when the parameters were set: the first, then each n-th.
func (d *direction) strikes() bool {
	n := d.params.LossEvery
	if n <= 0 {
		return false
	}
	hit := d.seen%n == 0
	d.seen++
	return hit
}

func (d *direction) due(now int64, jitter uint64) int64 {
	p := &d.params
	delay := int64(p.Delay)
	if p.Jitter > 0 {
		delay += within(jitter, 2*int64(p.Jitter)) - int64(p.Jitter)
	}
	at := max(now+max(delay, 0), d.floor)
	if p.Ordered {
		at = max(at, d.last)
	}
	return at
}

func (d *direction) hold(peer address.Addr, b []byte, due int64) {
	if len(d.queue.heap) >= d.limit {
		d.counts.QueueFull++
		return
	}
	it := d.queue.take()
	it.event = link.Event{Kind: link.Datagram, Addr: peer, N: copy(it.buf[:], b)}
	d.queue.push(it, due)
}

// follow keeps an event behind what came before it, and is false when that is
// nothing or there is no room.
func (d *direction) follow(e link.Event) bool {
	if len(d.queue.heap) == 0 || len(d.queue.heap) >= d.limit {
		return false
	}
	it := d.queue.take()
	it.event = e
	it.event.N = 0
	d.floor = d.latest
	d.queue.push(it, d.latest)
	return true
}

func (d *direction) snapshot() Counts {
	c := d.counts
	c.Waiting = len(d.queue.heap)
	return c
}

func (d *direction) corrupt(b []byte) {
	if d.dice.flip(b, d.params.CorruptFrom) {
		d.counts.Corrupted++
	}
}

func (d *direction) forget(peer address.Addr) {
	kept := d.queue.heap[:0]
	for _, it := range d.queue.heap {
		if it.event.Addr == peer {
			d.queue.give(it)
			continue
		}
		kept = append(kept, it)
	}
	clear(d.queue.heap[len(kept):])
	d.queue.heap = kept
	d.queue.order()
}

type item struct {
	due    int64 // ns
	serial uint64
	event  link.Event
	buf    [link.MaxDatagram]byte
}

func (it *item) bytes() []byte { return it.buf[:it.event.N] }

func (it *item) before(other *item) bool {
	return it.due < other.due || it.due == other.due && it.serial < other.serial
}

// queue is a heap by due time, and by the order of push when that is equal.
type queue struct {
	heap   []*item
	spare  []*item
	serial uint64
}

func (q *queue) take() *item {
	last := len(q.spare) - 1
	if last < 0 {
		return new(item)
	}
	it := q.spare[last]
	q.spare = q.spare[:last]
	return it
}

func (q *queue) give(it *item) {
	it.event = link.Event{}
	q.spare = append(q.spare, it)
}

func (q *queue) push(it *item, due int64) {
	q.serial++
	it.due, it.serial = due, q.serial
	q.heap = append(q.heap, it)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(q.heap[parent]) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

func (q *queue) pop(now int64) *item {
	if len(q.heap) == 0 || q.heap[0].due > now {
		return nil
	}
	it, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap[last] = nil
	q.heap = q.heap[:last]
	q.sink(0)
	return it
}

func (q *queue) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.heap); child++ {
			if q.heap[child].before(q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}

func (q *queue) order() {
	for i := len(q.heap)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
}

// dice is the chance of one direction. PCG is specified, so that a seed means
// the same with every version of Go.
type dice struct {
	fates *rand.PCG // a fixed number of values per datagram
	bits  *rand.PCG // which bits flip
}

func newDice(seed uint64, stream uint64) dice {
	return dice{fates: rand.NewPCG(seed, 2*stream), bits: rand.NewPCG(seed, 2*stream+1)}
}

type fate struct {
	loss, corrupt, duplicate, reorder uint64
	jitter, copyJitter, hold          uint64
}

func (d dice) throw() fate {
	next := d.fates.Uint64
	return fate{next(), next(), next(), next(), next(), next(), next()}
}

func hits(throw uint64, percent float64) bool {
	// 53 bits, all that a float64 holds: 100 % always hits and 0 % never does.
	return float64(throw>>11) < percent/100*(1<<53)
}

// within returns a value from 0 up to but not n, for n from 1 on. The bias of
// the remainder is below n/2^64.
func within(throw uint64, n int64) int64 { return int64(throw % uint64(n)) }

// flip changes an odd number of bits of b from a byte on, so that b is never
// what it was. It is false when there is no such byte.
func (d dice) flip(b []byte, from int) bool {
	if from >= len(b) {
		return false
	}
	b = b[from:]
	for range 1 + 2*within(d.bits.Uint64(), 4) {
		bit := within(d.bits.Uint64(), 8*int64(len(b)))
		b[bit/8] ^= 1 << (bit % 8)
	}
	return true
}
