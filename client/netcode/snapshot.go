package netcode

import (
	"encoding/binary"
)

// SendSnapshot sends a snapshot to a client with the next Flush; of several in
// one tick only the last leaves. It may be lost, see Acks.
//
// Errors: ErrGone, ErrNotAllowed, ErrTooLarge.
func (c Conn) SendSnapshot(tick uint32, b []byte) error {
	s, err := c.maySend(true, snapshotLen, len(b))
	if err == nil {
		s.snapshots.out = outbound{due: true, tick: tick, body: append(s.snapshots.out.body[:0], b...)}
	}
	return err
}

// Snapshot returns the newest snapshot, if it came in the last Update.
func (c Conn) Snapshot() (tick uint32, b []byte, ok bool) {
	s := c.live()
	if s == nil || !s.snapshots.in.fresh {
		return 0, nil, false
	}
	return s.snapshots.in.tick, s.snapshots.in.body, true
}

// Acks returns which snapshots the client has processed. A server learns it from the
// client's commands; a client that sends none acknowledges snapshots every 50 ms.
func (c Conn) Acks() Acks {
	switch s := c.live(); {
	case s == nil:
		return Acks{}
	case c.d.server:
		return s.snapshots.acked
	default:
		return s.snapshots.acks
	}
}

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

type inbound struct {
	any   bool // one was received since the connection was last in game
	fresh bool // it was in this tick
	tick  uint32
	body  []byte // valid until the next Update
	after uint32 // the peer's time when the game was left: snapshots of before were for that game
}

func (in *inbound) take(tick uint32, body []byte) (newer, replaces bool) {
	if in.any && int32(tick-in.tick) <= 0 {
		return false, false
	}
	replaces = in.fresh
	*in = inbound{any: true, fresh: true, tick: tick, body: body, after: in.after}
	return true, replaces
}

type outbound struct {
	due  bool
	tick uint32
	body []byte
}

type snapshotStream struct {
	s        *session
	in       inbound  // of a client
	out      outbound // of a server
	sequence uint8    // of the last snapshot
	age      int32    // that the last snapshot says
	acks     Acks     // of the client
	acked    Acks     // as the server knows them
	ackDue   bool     // a snapshot was received since the last datagram of commands
}

// leave forgets what is acknowledged. Snapshots from before the peer's time do not count any more.
func (q *snapshotStream) leave(time uint32) {
	if q.in.any {
		q.in = inbound{after: time}
	}
	q.out.due, q.ackDue = false, false
	q.acks, q.acked, q.age = Acks{}, Acks{}, 0
}

// take keeps the newest snapshot of a tick. One that the game will not
// see, since a newer one replaced it, is not acknowledged.
func (q *snapshotStream) take(b []byte) {
	s := q.s
	h, body, ok := parseSnapshot(b)
	if !ok || s.state != StateConnected || !s.inGame {
		s.counts.Ignored++
		return
	}
	if q.in.after != 0 && int32(h.time-q.in.after) <= 0 {
		s.counts.Late++
		return
	}
	s.measure(h.time, h.ret)
	s.counts.Received++
	before, had := q.in.tick, q.in.any
	newer, replaces := q.in.take(h.tick, body)
	if !newer {
		s.counts.Late++
		return
	}
	if had {
		s.counts.Lost += uint64(h.sequence - q.sequence - 1)
	}
	q.sequence, q.age, q.ackDue = h.sequence, h.age, true
	q.acks.add(h.tick)
	if replaces {
		s.counts.Dropped++
		q.acks.remove(before)
	}
}

func (q *snapshotStream) flush() {
	if !q.out.due {
		return
	}
	q.out.due = false
	s, d := q.s, q.s.d
	now := d.clock.millis()
	h := snapshotHeader{time: now, ret: s.trip.echoTime(now), sequence: q.sequence, tick: q.out.tick}
	if s.commands.inputs.any {
		h.age = int32(q.out.tick - s.commands.inputs.newest)
	}
	q.sequence++
	d.scratch = append(h.append(d.scratch[:0]), q.out.body...)
	if d.ep.Send(s.conn, pipelineFor(d.ep, len(d.scratch)), d.scratch) != nil {
		s.counts.Unsent++
		return
	}
	s.counts.Sent++
}

// Acks is a bitmask of the snapshots that a client has processed, by tick.
type Acks struct {
	Newest uint32
	mask   uint32 // bit i: the snapshot of tick Newest-i; 0 if there was none yet
}

// Has reports whether the snapshot of a tick is acknowledged.
func (a Acks) Has(tick uint32) bool {
	back := a.Newest - tick
	return back < 32 && a.mask&(1<<back) != 0
}

func (a *Acks) add(tick uint32) {
	ahead := tick - a.Newest
	if a.mask == 0 || ahead >= 32 {
		*a = Acks{Newest: tick, mask: 1}
		return
	}
	*a = Acks{Newest: tick, mask: a.mask<<ahead | 1}
}

func (a *Acks) remove(tick uint32) {
	if back := a.Newest - tick; back < 32 {
		a.mask &^= 1 << back
	}
}
