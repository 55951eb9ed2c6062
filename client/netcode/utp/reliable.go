package utp

import (
	"encoding/binary"
	"time"
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
func (r *reliable) acknowledged(h ReliableHeader, now, maxResend int64, p *pool) (any bool) {
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
func (r *reliableReceiver) header(now int64) ReliableHeader {
	h := ReliableHeader{Newest: uint16(r.newest), Mask: r.mask}
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
func (r *reliable) inFlight() int {
	n := 0
	for i := range r.sender.slots {
		if r.sender.slots[i].body != nil {
			n++
		}
	}
	return n
}

// publishRTT copies the round trip of a pipeline that may have a new one.
func (c *conn) publishRTT(r *reliable) {
	c.stats.RTT = time.Duration(r.rtt.smooth) * time.Microsecond
	c.stats.RTTVariation = time.Duration(r.rtt.vary) * time.Microsecond
	c.stats.ResendAfter = time.Duration(r.rtt.timeout) * time.Millisecond
}

// Sizes of the stage headers, in bytes.
const (
	SequencedLen      = 2
	FragmentLen       = 2
	ReliableNarrowLen = 12 // windows of 1 to 32
	ReliableWideLen   = 16 // windows of 33 to 64
)

// SequencedHeader is the header of an unreliable sequenced stage: u16 LE.
type SequencedHeader struct {
	Sequence uint16 // the first is 0
}

// ParseSequenced reads the header and returns what follows it.
// Errors: ErrShort.
func ParseSequenced(b []byte) (SequencedHeader, []byte, error) {
	if len(b) < SequencedLen {
		return SequencedHeader{}, nil, ErrShort
	}
	return SequencedHeader{Sequence: binary.LittleEndian.Uint16(b)}, b[SequencedLen:], nil
}

// Append appends the encoded header to dst.
func (h SequencedHeader) Append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint16(dst, h.Sequence)
}

// FragmentHeader is the header of a fragmentation stage: u16 LE, bit 15 is
// First, bit 14 is Last, the rest is the sequence. Every packet has it; a
// message that is whole is both first and last.
type FragmentHeader struct {
	First, Last bool
	Sequence    uint16 // of the packet, 0 to 16383; runs on from message to message
}

const (
	fragmentFirst = 1 << 15
	fragmentLast  = 1 << 14
	// fragmentMask bounds the sequence of a fragment.
	fragmentMask = fragmentLast - 1
)

// ParseFragment reads the header and returns what follows it.
// Errors: ErrShort.
func ParseFragment(b []byte) (FragmentHeader, []byte, error) {
	if len(b) < FragmentLen {
		return FragmentHeader{}, nil, ErrShort
	}
	v := binary.LittleEndian.Uint16(b)
	return FragmentHeader{
		First:    v&fragmentFirst != 0,
		Last:     v&fragmentLast != 0,
		Sequence: v & fragmentMask,
	}, b[FragmentLen:], nil
}

// Append appends the encoded header to dst. Bits of the sequence above 13 are
// cut off.
func (h FragmentHeader) Append(dst []byte) []byte {
	v := h.Sequence & fragmentMask
	if h.First {
		v |= fragmentFirst
	}
	if h.Last {
		v |= fragmentLast
	}
	return binary.LittleEndian.AppendUint16(dst, v)
}

// ReliableHeader is the header of a reliable sequenced stage.
//
//	 0      1    2            4          6        8
//	+------+----+------------+----------+--------+----------------+
//	| type | 0  | processing | sequence | newest | mask           |
//	+------+----+------------+----------+--------+----------------+
//	  u8     u8   u16 LE       u16 LE     u16 LE   u32 or u64 LE
//
// The size of the mask is not on the wire: both ends must be configured alike.
// A pure acknowledgement has one more byte behind it, without a meaning.
type ReliableHeader struct {
	Ack        bool   // type 1: acknowledges and carries nothing
	Processing uint16 // ms between receiving Newest and sending this
	Sequence   uint16 // the first is 0; 0 in pure acknowledgements
	Newest     uint16 // sequence received; 0xFFFF before anything was
	Mask       uint64 // bit i set: Newest-i was received; bits older than sequence 0 mean nothing
}

// ParseReliable reads the header with a mask of 8 bytes if wide, of 4 bytes
// otherwise, and returns what follows it.
// Errors: ErrShort, and ErrStage for a type above 1 or a mask of another size,
// as windows above 64 announce it.
func ParseReliable(b []byte, wide bool) (ReliableHeader, []byte, error) {
	size := reliableLen(wide)
	if len(b) < size {
		return ReliableHeader{}, nil, ErrShort
	}
	if b[0] > 1 || b[1] != 0 {
		return ReliableHeader{}, nil, ErrStage
	}
	h := ReliableHeader{
		Ack:        b[0] == 1,
		Processing: binary.LittleEndian.Uint16(b[2:]),
		Sequence:   binary.LittleEndian.Uint16(b[4:]),
		Newest:     binary.LittleEndian.Uint16(b[6:]),
		Mask:       uint64(binary.LittleEndian.Uint32(b[8:])),
	}
	if wide {
		h.Mask = binary.LittleEndian.Uint64(b[8:])
	}
	return h, b[size:], nil
}

// Append appends the encoded header to dst, with 8 bytes of mask if wide, with
// the lower 4 otherwise.
func (h ReliableHeader) Append(dst []byte, wide bool) []byte {
	kind := byte(0)
	if h.Ack {
		kind = 1
	}
	dst = append(dst, kind, 0)
	dst = binary.LittleEndian.AppendUint16(dst, h.Processing)
	dst = binary.LittleEndian.AppendUint16(dst, h.Sequence)
	dst = binary.LittleEndian.AppendUint16(dst, h.Newest)
	if wide {
		return binary.LittleEndian.AppendUint64(dst, h.Mask)
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(h.Mask))
}

func reliableLen(wide bool) int {
	if wide {
		return ReliableWideLen
	}
	return ReliableNarrowLen
}
