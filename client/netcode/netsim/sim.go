package netsim

import (
	"fmt"
	"net"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// maxPull bounds how many datagrams one Receive takes off the link below, so
// that a flood which is all lost or delayed does not hold up a tick.
const maxPull = 4096

// Config says what a Sim does.
type Config struct {
	// Seed makes the chance; each value, 0 too, is as good as another.
	Seed uint64
	// Out is for what is sent, In for what is received.
	Out, In Params
	// Queue is how many datagrams of one direction may be delayed at a time
	// before the newest is dropped. 0 means 4096, 6 MB when full.
	Queue int
}

// Sim is a link with a bad network in front of it. It belongs to one goroutine,
// that of the link below, which it owns from New on.
type Sim struct {
	inner   link.Link
	out, in direction
	start   time.Time             // of the first Advance, the zero of now
	now     int64                 // ns
	leaving map[address.Addr]bool // peers whose Disconnect is delayed: nothing of them is wanted
	scratch [link.MaxDatagram]byte
	closed  bool
}

var _ link.Link = (*Sim)(nil)

// New puts a bad network in front of a link. Errors wrap ErrParams; the link
// remains the caller's then.
func New(inner link.Link, cfg Config) (*Sim, error) {
	if err := cfg.Out.Check(); err != nil {
		return nil, err
	}
	if err := cfg.In.Check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Queue < 0:
		return nil, fmt.Errorf("%w: Queue is negative", ErrParams)
	case cfg.Queue == 0:
		cfg.Queue = 4096
	}
	return &Sim{
		inner:   inner,
		out:     newDirection(cfg.Out, cfg.Seed, 0, cfg.Queue),
		in:      newDirection(cfg.In, cfg.Seed, 1, cfg.Queue),
		leaving: make(map[address.Addr]bool),
	}, nil
}

// SetOut changes what happens to datagrams that are sent from now on. Those
// that are delayed already stay so. Errors wrap ErrParams.
func (s *Sim) SetOut(p Params) error {
	err := p.Check()
	if err == nil {
		s.out.set(p)
	}
	return err
}

// SetIn is SetOut for datagrams that are received.
func (s *Sim) SetIn(p Params) error {
	err := p.Check()
	if err == nil {
		s.in.set(p)
	}
	return err
}

// Counts returns what became of the datagrams of each direction. What the link
// below counts is in Stats.
func (s *Sim) Counts() (out, in Counts) { return s.out.snapshot(), s.in.snapshot() }

// Advance moves the time on and sends what has become due. Time that goes back
// stands still here.
func (s *Sim) Advance(now time.Time) {
	if s.start.IsZero() {
		s.start = now
	}
	s.now = max(s.now, int64(now.Sub(s.start)))
	s.inner.Advance(now)
	if !s.closed {
		s.release(s.now)
	}
}

// release sends what is due by a time.
func (s *Sim) release(now int64) {
	for it := s.out.queue.pop(now); it != nil; it = s.out.queue.pop(now) {
		if it.event.Kind == link.Left {
			s.inner.Disconnect(it.event.Addr)
			delete(s.leaving, it.event.Addr)
		} else {
			s.forward(it.event.Addr, it.bytes())
		}
		s.out.queue.give(it)
	}
}

// forward sends a datagram whose sender is told nothing any more: an error is a
// loss that the link below counts.
func (s *Sim) forward(to address.Addr, b []byte) {
	if s.inner.Send(to, b) == nil {
		s.out.counts.Passed++
	}
}

// Send sends a datagram through the bad network. What the network loses is no
// error, and what the link below says of a delayed datagram comes too late to
// be one.
func (s *Sim) Send(to address.Addr, b []byte) error {
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

// put sends a datagram now or when it is due.
func (s *Sim) put(to address.Addr, b []byte, due int64) error {
	if due > s.now {
		s.out.hold(to, b, due)
		return nil
	}
	err := s.inner.Send(to, b)
	if err == nil {
		s.out.counts.Passed++
	}
	return err
}

// Receive returns what has come through the bad network. An event about a peer
// comes after the datagrams that were received before it, however delayed.
func (s *Sim) Receive(b []byte) link.Event {
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
		e := s.inner.Receive(b)
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

// hand gives the caller what was delayed. It is false when the caller's buffer
// is too small for it.
func (s *Sim) hand(it *item, b []byte) (link.Event, bool) {
	e := it.event
	fits := e.N <= len(b)
	if e.Kind == link.Datagram && fits {
		copy(b, it.bytes())
		s.in.counts.Passed++
	}
	s.in.queue.give(it)
	return e, fits
}

// arrive judges a datagram that was received. It is true for one that goes on
// to the caller at once.
func (s *Sim) arrive(e link.Event, b []byte) bool {
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

// Flush flushes the link below.
func (s *Sim) Flush() { s.inner.Flush() }

// Disconnect ends the connection to a peer when all that was sent before has
// left. What of the peer is delayed on its way in is dropped.
func (s *Sim) Disconnect(peer address.Addr) {
	s.in.forget(peer)
	if !s.out.follow(link.Event{Kind: link.Left, Addr: peer}) {
		s.inner.Disconnect(peer)
		return
	}
	s.leaving[peer] = true
}

// Dial is that of the link below: what a transport says to itself is not
// simulated.
func (s *Sim) Dial() error {
	if s.closed {
		return net.ErrClosed
	}
	return s.inner.Dial()
}

// Local returns the address of the link below.
func (s *Sim) Local() address.Addr { return s.inner.Local() }

// Overhead returns that of the link below.
func (s *Sim) Overhead() int { return s.inner.Overhead() }

// Stats returns what the link below has counted.
func (s *Sim) Stats() link.Stats { return s.inner.Stats() }

// Inner returns the link below.
func (s *Sim) Inner() link.Link { return s.inner }

// Close sends what is still delayed on its way out, since a network delivers
// also what is under way when its sender is gone, and closes the link below.
func (s *Sim) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.release(s.out.latest)
	s.inner.Flush()
	return s.inner.Close()
}
