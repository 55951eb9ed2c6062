package utp

import "time"

// reliable has sequences of 64 bits, 16 on the wire, so they never wrap.
type reliable struct {
	sender   reliableSender
	receiver reliableReceiver
	rtt      rtt
	// windowConfirmed: an acknowledgement of the right size came, so the windows fit.
	windowConfirmed bool
}

type reliableSender struct {
	next   int64 // sequence of the next packet
	oldest int64 // the first that is not acknowledged; next if there is none
	count  int   // of those that are not acknowledged
	slots  []sentPacket
}

// sentPacket is in the slot of its sequence modulo the window.
type sentPacket struct {
	body  []byte        // behind the reliable header; nil: acknowledged
	first time.Duration // when it was sent first
	last  time.Duration // when it was sent last
}

// reliableReceiver remembers what was received and what can not be delivered
// yet, because something before it is missing.
type reliableReceiver struct {
	newest  int64  // sequence received; -1: none
	mask    uint64 // bit i set: newest-i was received; set for those below 0
	deliver int64  // the next sequence to deliver
	held    [][]byte
	at      time.Duration // when newest was received
	due     bool          // something is to be acknowledged
	copies  int           // received again since the last acknowledgement
}

// copiesBeforeAck is how many packets must come a second time before they are
// acknowledged again. It bounds what a peer with a short timeout costs.
const copiesBeforeAck = 3

func newReliable(window int) *reliable {
	r := &reliable{
		sender:   reliableSender{slots: make([]sentPacket, window)},
		receiver: reliableReceiver{held: make([][]byte, window)},
	}
	r.reset(new(pool))
	return r
}

func (r *reliable) reset(p *pool) {
	slots, held := r.sender.slots, r.receiver.held
	for i := range slots {
		p.release(slots[i].body)
		p.release(held[i])
	}
	clear(slots)
	clear(held)
	*r = reliable{
		sender:   reliableSender{slots: slots},
		receiver: reliableReceiver{newest: -1, mask: ^uint64(0), held: held},
		rtt:      newRTT(),
	}
}

func unwrap(wire uint16, ref int64) int64 {
	return ref + int64(int16(wire-uint16(ref)))
}

func (s *reliableSender) slot(sequence int64) *sentPacket {
	return &s.slots[sequence%int64(len(s.slots))]
}

func (s *reliableSender) free() int { return len(s.slots) - int(s.next-s.oldest) }

// add keeps a packet. The caller has seen that a slot is free.
func (s *reliableSender) add(now time.Duration, body []byte) int64 {
	sequence := s.next
	*s.slot(sequence) = sentPacket{body: body, first: now, last: now}
	s.next++
	s.count++
	return sequence
}

// acknowledged ignores a header whose newest sequence was not sent.
func (r *reliable) acknowledged(h reliableHeader, now, maxResend, resumed time.Duration, p *pool) (any bool) {
	s := &r.sender
	newest := unwrap(h.newest, s.next-1)
	if newest >= s.next {
		return false
	}
	// The mask has a bit for each packet under way: those are at most a window.
	for sequence := s.oldest; sequence <= newest; sequence++ {
		pkt := s.slot(sequence)
		if pkt.body == nil || h.mask>>(newest-sequence)&1 == 0 {
			continue
		}
		if sequence == newest && (pkt.first == pkt.last || pkt.first >= resumed) {
			// A packet that was sent again counts from its first sending. That
			// errs to the long side, and only the long side ends resending for
			// nothing when the round trip is above the timeout. One that waited for a
			// network that had stopped tells nothing.
			r.rtt.sample(now-pkt.first-time.Duration(h.processing)*time.Millisecond, maxResend)
		}
		p.release(pkt.body)
		pkt.body = nil
		s.count--
		any = true
	}
	for s.oldest < s.next && s.slot(s.oldest).body == nil {
		s.oldest++
	}
	return any
}

func (r *reliableReceiver) acknowledge(h *reliableHeader, now time.Duration) {
	h.newest, h.mask = uint16(r.newest), r.mask
	if r.newest >= 0 {
		h.processing = uint16(min((now - r.at).Milliseconds(), 65535))
	}
	r.due, r.copies = false, 0
}

func (r *reliableReceiver) slot(sequence int64) *[]byte {
	return &r.held[sequence%int64(len(r.held))]
}

// inWindow reports whether an honest peer can have sent this sequence.
func (r *reliableReceiver) inWindow(sequence int64) bool {
	window := int64(len(r.held))
	return sequence >= 0 && sequence >= r.deliver-window && sequence < r.deliver+window
}

func (r *reliableReceiver) record(sequence int64, now time.Duration) bool {
	if sequence < r.deliver || *r.slot(sequence) != nil {
		r.copies++
		r.due = r.due || r.copies >= copiesBeforeAck
		return false
	}
	r.due = true
	if sequence > r.newest {
		r.mask = r.mask<<(sequence-r.newest) | 1
		r.newest, r.at = sequence, now
	} else {
		r.mask |= 1 << (r.newest - sequence)
	}
	return true
}

// rtt estimates the round trip of a reliable pipeline. Smoothing is 1/8, and
// 1/4 for the variation.
type rtt struct {
	smooth  int64         // µs
	vary    int64         // µs
	timeout time.Duration // after which a packet is sent again
}

func newRTT() rtt { return rtt{smooth: 50_000, vary: 5_000, timeout: startResend} }

// sample takes a round trip of at least 1 ms.
func (r *rtt) sample(d, limit time.Duration) {
	delta := max(d, time.Millisecond).Microseconds() - r.smooth
	r.smooth += delta / 8
	r.vary += (max(delta, -delta) - r.vary) / 4
	r.timeout = min(max(time.Duration((r.smooth+4*r.vary)/1000)*time.Millisecond, minResend), limit)
}

func (r *rtt) publish(s *Stats) {
	s.RTT = time.Duration(r.smooth) * time.Microsecond
	s.RTTVariation = time.Duration(r.vary) * time.Microsecond
}
