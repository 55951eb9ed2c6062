package utp

import (
	"time"

	"github.com/ferryrelay/ferry/internal/utpwire"
)

// reliable is one connection's state of a reliable sequenced stage. Sequences
// have 16 bits on the wire and 64 here, so they never wrap.
type reliable struct {
	sender   reliableSender
	receiver reliableReceiver
	rtt      rtt
	// windowConfirmed: an acknowledgement of the right size came, so the windows fit.
	windowConfirmed bool
}

// reliableSender remembers what was sent and not acknowledged.
type reliableSender struct {
	next   int64 // sequence of the next packet
	oldest int64 // the first that is not acknowledged; next if there is none
	slots  []sentPacket
}

// sentPacket is in the slot of its sequence modulo the window.
type sentPacket struct {
	body  []byte // behind the reliable header; nil: acknowledged
	first int64  // ms when it was sent first
	last  int64  // ms when it was sent last
}

// reliableReceiver remembers what was received and what can not be delivered
// yet, because something before it is missing.
type reliableReceiver struct {
	newest  int64  // sequence received; -1: none
	mask    uint64 // bit i set: newest-i was received; set for those below 0
	deliver int64  // the next sequence to deliver
	held    [][]byte
	at      int64 // ms when newest was received
	due     bool  // something is to be acknowledged
	copies  int   // received again since the last acknowledgement
}

// copiesBeforeAck is how many packets must come a second time before they are
// acknowledged again. It bounds what a peer with a short timeout costs.
const copiesBeforeAck = 3

func newReliable(window int) *reliable {
	r := new(reliable)
	r.sender.slots = make([]sentPacket, window)
	r.receiver.held = make([][]byte, window)
	return r
}

// reset readies the state for a new connection and gives all buffers back.
func (r *reliable) reset(p *pool) {
	slots, held := r.sender.slots, r.receiver.held
	for i := range slots {
		if slots[i].body != nil {
			p.release(slots[i].body)
		}
		slots[i] = sentPacket{}
	}
	for i := range held {
		if held[i] != nil {
			p.release(held[i])
		}
		held[i] = nil
	}
	*r = reliable{rtt: newRTT()}
	r.sender.slots = slots
	r.receiver = reliableReceiver{newest: -1, mask: ^uint64(0), held: held}
}

// unwrap returns the sequence nearest to ref whose lower 16 bits are wire.
func unwrap(wire uint16, ref int64) int64 {
	return ref + int64(int16(wire-uint16(ref)))
}

func (s *reliableSender) slot(sequence int64) *sentPacket {
	return &s.slots[sequence%int64(len(s.slots))]
}

// free returns how many packets may be sent now.
func (s *reliableSender) free() int { return len(s.slots) - int(s.next-s.oldest) }

// add keeps a packet and returns its sequence. The caller has seen that a slot
// is free.
func (s *reliableSender) add(now int64, body []byte) int64 {
	sequence := s.next
	*s.slot(sequence) = sentPacket{body: body, first: now, last: now}
	s.next++
	return sequence
}

// acknowledged releases the packets that a header acknowledges, and reports whether
// there was one. It ignores a header whose newest sequence was not sent.
func (r *reliable) acknowledged(h utpwire.ReliableHeader, now, maxResend int64, p *pool) (any bool) {
	s := &r.sender
	newest := unwrap(h.Newest, s.next-1)
	if newest >= s.next {
		return false
	}
	// The mask has a bit for each packet under way: those are at most a window.
	for sequence := s.oldest; sequence <= newest; sequence++ {
		pkt := s.slot(sequence)
		if pkt.body == nil || h.Mask>>(newest-sequence)&1 == 0 {
			continue
		}
		if sequence == newest {
			// A packet that was sent again counts from its first sending. That
			// errs to the long side, and only the long side ends resending for
			// nothing when the round trip is above the timeout.
			r.rtt.sample(now-pkt.first-int64(h.Processing), maxResend)
		}
		p.release(pkt.body)
		pkt.body = nil
		any = true
	}
	for s.oldest < s.next && s.slot(s.oldest).body == nil {
		s.oldest++
	}
	return any
}

// header returns the header of a packet that leaves now: everything received
// is acknowledged with it.
func (r *reliableReceiver) header(now int64) utpwire.ReliableHeader {
	h := utpwire.ReliableHeader{Newest: uint16(r.newest), Mask: r.mask}
	if r.newest >= 0 {
		h.Processing = uint16(min(now-r.at, 65535))
	}
	r.due, r.copies = false, 0
	return h
}

// arrival is what a received sequence is.
type arrival uint8

const (
	arrivalInOrder     arrival = iota // the one to deliver next
	arrivalEarly                      // something before it is missing
	arrivalDuplicate                  // received before
	arrivalOutOfWindow                // further from here than an honest peer's can be
)

// record notes a received packet and says what it is.
func (r *reliableReceiver) record(wire uint16, now int64) (sequence int64, a arrival) {
	sequence = unwrap(wire, r.deliver)
	window := int64(len(r.held))
	switch {
	case sequence < 0 || sequence < r.deliver-window || sequence >= r.deliver+window:
		return sequence, arrivalOutOfWindow
	case sequence < r.deliver || r.held[sequence%window] != nil:
		if r.copies++; r.copies >= copiesBeforeAck {
			r.due = true
		}
		return sequence, arrivalDuplicate
	}
	r.due = true
	if sequence > r.newest {
		r.mask = r.mask<<(sequence-r.newest) | 1
		r.newest, r.at = sequence, now
	} else {
		r.mask |= 1 << (r.newest - sequence)
	}
	if sequence == r.deliver {
		r.deliver++
		return sequence, arrivalInOrder
	}
	return sequence, arrivalEarly
}

// keep holds a packet that arrived early.
func (r *reliableReceiver) keep(sequence int64, body []byte) {
	r.held[sequence%int64(len(r.held))] = body
}

// ready returns the next held packet that can be delivered now, nil if there
// is none. The caller releases it.
func (r *reliableReceiver) ready() []byte {
	slot := &r.held[r.deliver%int64(len(r.held))]
	body := *slot
	if body != nil {
		*slot = nil
		r.deliver++
	}
	return body
}

// inFlight is how many packets have no acknowledgement.
func (c *conn) inFlight() (n int) {
	for i := range c.pipelines {
		r := c.pipelines[i].reliable
		if r == nil {
			continue
		}
		for _, pkt := range r.sender.slots {
			if pkt.body != nil {
				n++
			}
		}
	}
	return n
}

// publishRTT copies the round trip of a pipeline that may have a new one.
func (c *conn) publishRTT(r *reliable) {
	c.stats.RTT = time.Duration(r.rtt.smooth) * time.Microsecond
	c.stats.RTTVariation = time.Duration(r.rtt.vary) * time.Microsecond
}
