package netcode

import (
	"encoding/binary"
	"iter"

	"github.com/ferryrelay/ferry/internal/utp"
)

// message takes one message of the transport.
func (d *Driver) message(s *session, p utp.PipelineID, b []byte) {
	switch {
	case p == utp.EntitiesReliable:
		d.rpcPacket(s, b)
	case len(b) > 0 && b[0] == kindMessage:
		d.takeMessage(s, b[1:])
	case len(b) > 0 && b[0] == kindClose:
		d.closeByPeer(s, b[1:])
	case d.server:
		d.takeCommands(s, b)
	default:
		d.takeSnapshot(s, b)
	}
}

// rpcPacket takes the RPCs of a packet in their order. One that is not right
// ends the connection, and with it all that was received in this tick.
func (d *Driver) rpcPacket(s *session, b []byte) {
	_, rest, ok := utp.ParseRPCPacket(b)
	if !ok && !s.versionReceived {
		d.closeLocal(s, ReasonProtocolError, "not an RPC packet: the transports differ, perhaps in their window")
		return
	}
	if !ok {
		d.closeInvalid(s, "not an RPC packet")
		return
	}
	for len(rest) > 0 && s.live() {
		var r utp.RPC
		if r, rest, ok = utp.ParseRPC(rest); !ok {
			d.closeInvalid(s, "an RPC is cut off")
			return
		}
		switch {
		case r.Bits%8 != 0:
			d.closeInvalid(s, "an RPC has trailing bits")
		case s.partial.of != nil && r.Index != indexPart:
			d.closeInvalid(s, "another RPC between the parts of RPC "+s.partial.of.name)
		case r.Index >= firstSystem && r.Index != indexNamed:
			d.system(s, r.Index, r.Payload)
		default:
			d.takeRPC(s, r)
		}
	}
}

// takeRPC takes one RPC of the game.
func (d *Driver) takeRPC(s *session, r utp.RPC) {
	t, payload, known := d.findRPC(r.Index, r.Payload)
	if !known {
		d.closeInvalid(s, "an RPC is unknown")
		return
	}
	d.deliverRPC(s, t, payload)
}

// findRPC returns the type of an RPC, and its payload without the hash.
func (d *Driver) findRPC(index uint16, payload []byte) (t *rpcType, rest []byte, known bool) {
	i, known := int(index), int(index) < len(d.table)
	if index == indexNamed && len(payload) >= hashLen {
		i, known = d.table.find(binary.LittleEndian.Uint64(payload))
		payload = payload[hashLen:]
	}
	if !known {
		return nil, nil, false
	}
	return &d.table[i], payload, true
}

// deliverRPC gives a complete RPC to the game.
func (d *Driver) deliverRPC(s *session, t *rpcType, payload []byte) {
	if s.state != StateConnected && !t.approval {
		d.closeInvalid(s, "RPC "+t.name+" before the connection is connected")
		return
	}
	if !t.valid(payload) {
		d.closeInvalid(s, "RPC "+t.name+" has a wrong length")
		return
	}
	s.counts.RPCsReceived++
	s.rpcs = append(s.rpcs, RPC{hash: t.hash, Payload: payload})
}

// closeInvalid ends a connection whose peer sent what it must not.
func (d *Driver) closeInvalid(s *session, text string) {
	d.log.Warn("invalid RPC", "networkID", s.id, "detail", text)
	d.closeLocal(s, ReasonInvalidRPC, text)
	clear(s.rpcs) // Of a peer that breaks the rules nothing of that tick counts.
	s.rpcs = s.rpcs[:0]
	clear(s.messages)
	s.messages = s.messages[:0]
}

// SendMessage sends a message of the game in a datagram of its own with the next Flush, from
// either side of a connected connection. It may be lost, arrive twice or after a later one.
// Over UDP with the default MaxMessageSize the limit is 1389 bytes, over a relay 38 less.
//
// Errors: ErrGone, ErrNotAllowed, ErrTooLarge, ErrQueueFull.
func (c Conn) SendMessage(b []byte) error {
	s := c.live()
	switch {
	case s == nil:
		return ErrGone
	case s.state != StateConnected:
		return ErrNotAllowed
	case 1+len(b) > c.d.ep.MaxPayload(utp.EntitiesUnreliable):
		return ErrTooLarge
	}
	c.d.scratch = append(append(c.d.scratch[:0], kindMessage), b...)
	if c.d.ep.Send(s.conn, utp.EntitiesUnreliable, c.d.scratch) != nil {
		return ErrQueueFull
	}
	s.counts.MessagesSent++
	return nil
}

// Messages returns the messages that were received in the last Update, in the order of their
// arrival, also of a connection that ended in it. They are valid until the next Update. More
// than 256 in one Update are dropped.
func (c Conn) Messages() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) { each(c.receivingSession().messages, yield) }
}

// maxMessages bounds the messages of one connection that an Update keeps.
const maxMessages = 256

// takeMessage keeps a message of SendMessage.
func (d *Driver) takeMessage(s *session, b []byte) {
	if s.state != StateConnected {
		s.counts.Ignored++
		return
	}
	if len(s.messages) == maxMessages {
		s.counts.Dropped++
		return
	}
	s.counts.MessagesReceived++
	s.messages = append(s.messages, b)
}

// takeSnapshot keeps the newest snapshot of a tick. One that the game will not
// see, since a newer one replaced it, is not acknowledged.
func (d *Driver) takeSnapshot(s *session, b []byte) {
	h, body, ok := parseSnapshot(b)
	if !ok || s.state != StateConnected || !s.inGame {
		s.counts.Ignored++
		return
	}
	if s.in.after != 0 && int32(h.time-s.in.after) <= 0 {
		s.counts.Late++
		return
	}
	d.measure(s, h.time, h.ret)
	s.counts.Received++
	before, had := s.in.tick, s.in.any
	newer, replaces := s.in.take(h.tick, body)
	if !newer {
		s.counts.Late++
		return
	}
	if had {
		s.counts.Lost += uint64(h.sequence - s.sequence - 1)
	}
	s.sequence, s.age, s.ackDue = h.sequence, h.age, true
	s.acks.add(h.tick)
	if replaces {
		s.counts.Dropped++
		s.acks.remove(before)
	}
}

// The first byte of a message is its kind, as in Netcode for Entities. RPC
// packets are those of package utp; the others are this package's own.
const (
	kindCommand  = 0
	kindSnapshot = 1
	kindMessage  = 3 // the rest is the game's
	kindClose    = 4 // the rest is a close notice, beside the RPC
)

// snapshotHeader goes before a snapshot:
//
//	 0    1      5        9             13         14     18
//	+----+------+--------+-------------+----------+------+----------+
//	| 01 | time | return | command age | sequence | tick | snapshot |
//	+----+------+--------+-------------+----------+------+----------+
//	       u32    u32      i32 LE        u8         u32
type snapshotHeader struct {
	time, ret uint32
	age       int32 // tick of the snapshot less that of the newest command
	sequence  uint8
	tick      uint32
}

const (
	snapshotLen  = 18
	maxHeaderLen = commandLen + tickLen // the larger one of snapshots and commands
)

func (h snapshotHeader) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, kindSnapshot), h.time)
	dst = binary.LittleEndian.AppendUint32(dst, h.ret)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.age))
	return binary.LittleEndian.AppendUint32(append(dst, h.sequence), h.tick)
}

func parseSnapshot(b []byte) (snapshotHeader, []byte, bool) {
	if len(b) < snapshotLen || b[0] != kindSnapshot {
		return snapshotHeader{}, nil, false
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	h := snapshotHeader{time: u32(1), ret: u32(5), age: int32(u32(9)), sequence: b[13], tick: u32(14)}
	return h, b[snapshotLen:], true
}

// inbound is the newest snapshot of the server.
type inbound struct {
	any   bool // one was received since the connection was last in game
	fresh bool // it was in this tick
	tick  uint32
	body  []byte // valid until the next Update
	after uint32 // the peer's time when the game was left: snapshots of before were for that game
}

// take keeps a snapshot that is newer, and reports whether it was and whether it
// replaced one of the same tick.
func (in *inbound) take(tick uint32, body []byte) (newer, replaces bool) {
	if in.any && int32(tick-in.tick) <= 0 {
		return false, false
	}
	replaces = in.fresh
	*in = inbound{any: true, fresh: true, tick: tick, body: body, after: in.after}
	return true, replaces
}

// outbound is the snapshot of this tick, until Flush sends it.
type outbound struct {
	due  bool
	tick uint32
	body []byte
}

// Flush is the second half of a tick: it sends what the game has queued, with
// what the transport has to say.
func (d *Driver) Flush() {
	if d.ep != nil && !d.closed {
		d.flush()
	}
}

func (d *Driver) flush() {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		d.flushRPCs(s)
		switch {
		case !d.server:
			d.flushCommands(s)
		case s.out.due:
			d.flushSnapshot(s)
		}
	}
	d.ep.Flush()
	for to, data, ok := d.ep.Next(); ok; to, data, ok = d.ep.Next() {
		_ = d.link.Send(to, data) // An error is as if the network had lost it.
	}
	d.flushReleases()
	d.link.Flush()
}

// rpcRoom is how many bytes of RPCs one packet holds.
func (d *Driver) rpcRoom() int {
	return d.ep.MaxPayload(utp.EntitiesReliable) - utp.RPCPacketLen
}

// flushRPCs puts as many RPCs as fit into each packet. What the transport's
// window does not take stays for the next tick.
func (d *Driver) flushRPCs(s *session) {
	for s.queue.len() > 0 {
		some := s.queue.next(d.rpcRoom())
		d.scratch = append(utp.AppendRPCPacket(d.scratch[:0], d.millis()), some...)
		if err := d.ep.Send(s.conn, utp.EntitiesReliable, d.scratch); err != nil {
			return
		}
		s.queue.drop(len(some))
	}
}

// flushSnapshot sends the snapshot of this tick, in one packet if it fits.
func (d *Driver) flushSnapshot(s *session) {
	s.out.due = false
	now := d.millis()
	h := snapshotHeader{time: now, ret: s.trip.echoTime(now), sequence: s.sequence, tick: s.out.tick}
	if s.inputs.any {
		h.age = int32(s.out.tick - s.inputs.newest)
	}
	s.sequence++
	d.scratch = append(h.append(d.scratch[:0]), s.out.body...)
	if d.ep.Send(s.conn, d.pipeline(len(d.scratch)), d.scratch) != nil {
		s.counts.Unsent++
		return
	}
	s.counts.Sent++
}

func (d *Driver) pipeline(size int) utp.PipelineID {
	if size <= d.ep.MaxPayload(utp.EntitiesUnreliable) {
		return utp.EntitiesUnreliable
	}
	return utp.EntitiesFragmented
}

// sendRPC queues an RPC of the game.
func (d *Driver) sendRPC(s *session, r RPC) error {
	i, known := d.table.find(r.hash)
	if !known {
		return ErrUnknownRPC
	}
	if s.state != StateConnected && (!s.handshaking() || !d.table[i].approval) {
		return ErrNotAllowed
	}
	index, hash := uint16(i), make([]byte, 0, hashLen)
	if d.cfg.RelaxedVersion {
		index, hash = indexNamed, binary.LittleEndian.AppendUint64(hash, r.hash)
	}
	size := utp.RPCLen + len(hash) + len(r.Payload)
	if room := d.rpcRoom(); size > room {
		return d.sendLarge(s, index, hash, r.Payload, room)
	}
	if s.queue.len()+size > d.cfg.MaxRPCQueue {
		return ErrQueueFull
	}
	s.queue.add(index, hash, r.Payload)
	s.counts.RPCsSent++
	return nil
}

// maySend reports why a command or snapshot of a size can not be sent behind its header.
func (d *Driver) maySend(s *session, header, size int) error {
	if s.state != StateConnected || !s.inGame {
		return ErrNotAllowed
	}
	if size > d.cfg.MaxSnapshotLen || header+size > max(d.ep.MaxPayload(utp.EntitiesUnreliable), d.ep.MaxPayload(utp.EntitiesFragmented)) {
		return ErrTooLarge
	}
	return nil
}

// Acks is the set of snapshots that a client has processed, by tick, as an
// acknowledgement bitmask over the newest one and the 31 before.
type Acks struct {
	Newest uint32
	mask   uint32 // bit i: the snapshot of tick Newest-i; 0 if there was none yet
}

// Has reports whether the snapshot of a tick is acknowledged.
func (a Acks) Has(tick uint32) bool {
	back := a.Newest - tick
	return back < 32 && a.mask&(1<<back) != 0
}

// add notes a tick after Newest, or the first.
func (a *Acks) add(tick uint32) {
	ahead := tick - a.Newest
	if a.mask == 0 || ahead >= 32 {
		*a = Acks{Newest: tick, mask: 1}
		return
	}
	*a = Acks{Newest: tick, mask: a.mask<<ahead | 1}
}

// remove takes a tick back.
func (a *Acks) remove(tick uint32) {
	if back := a.Newest - tick; back < 32 {
		a.mask &^= 1 << back
	}
}

// roundTrip measures round trips by times that the peer returns. Times are in
// ms of the driver's clock and begin at 1, so that 0 is none.
type roundTrip struct {
	remote uint32 // newest time of the peer
	at     uint32 // when it came

	measured  bool
	rtt       float64 // smoothed, in ms
	variation float64
}

// echoTime is what the peer gets back.
func (r *roundTrip) echoTime(now uint32) uint32 {
	if r.remote == 0 {
		return 0
	}
	return r.remote + (now - r.at)
}

// maxRTT is the largest round trip in ms that is taken for one; a peer can
// return anything.
const maxRTT = 60_000

// minStall is the shortest round trip in ms that may have measured a stall.
const minStall = 1000

// measure takes a round trip.
func (d *Driver) measure(s *session, time, ret uint32) {
	_, resumed := d.ep.Heard(s.conn)
	s.trip.update(d.millis(), time, ret, millisOf(resumed))
}

func (r *roundTrip) update(now, time, ret, resumed uint32) {
	if time != 0 && (r.remote == 0 || int32(time-r.remote) > 0) {
		r.remote, r.at = time, now
	}
	if ret == 0 || now-ret > maxRTT {
		return
	}
	if now-ret > minStall && int32(ret-resumed) < 0 {
		return // It waited for a network that had stopped.
	}
	sample := float64(now - ret)
	if !r.measured {
		r.measured, r.rtt, r.variation = true, sample, sample/2
		return
	}
	off := sample - r.rtt
	r.rtt += off / 8
	r.variation += (max(off, -off) - r.variation) / 4
}
