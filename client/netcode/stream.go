package netcode

import "encoding/binary"

// The first byte of a message says what it is, as in Netcode for Entities. RPC
// packets are those of package utp; the others are this package's own.
const (
	kindCommand  = 0
	kindSnapshot = 1
)

// commandHeader goes before a command:
//
//	 0    1          5      9      13       17     21
//	+----+----------+------+------+--------+------+---------+
//	| 00 | snapshot | mask | time | return | tick | command |
//	+----+----------+------+------+--------+------+---------+
//	       u32 LE each
//
// Times are the sender's, in ms and never 0. The return is the newest time of
// the peer and for how long it was held, 0 before there was one.
type commandHeader struct {
	acks      Acks
	time, ret uint32
	tick      uint32
}

const commandLen = 21

func (h commandHeader) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, kindCommand), h.acks.Newest)
	dst = binary.LittleEndian.AppendUint32(dst, h.acks.Mask)
	dst = binary.LittleEndian.AppendUint32(dst, h.time)
	dst = binary.LittleEndian.AppendUint32(dst, h.ret)
	return binary.LittleEndian.AppendUint32(dst, h.tick)
}

func parseCommand(b []byte) (commandHeader, []byte, bool) {
	if len(b) < commandLen || b[0] != kindCommand {
		return commandHeader{}, nil, false
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	h := commandHeader{acks: Acks{u32(1), u32(5)}, time: u32(9), ret: u32(13), tick: u32(17)}
	return h, b[commandLen:], true
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

const snapshotLen = 18

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

// inbound is the newest message of the peer's stream.
type inbound struct {
	any   bool // one was received since the connection was last in game
	fresh bool // it was in this tick
	tick  uint32
	body  []byte // valid until the next Update
}

// take keeps a message that is newer, and reports whether it was and whether it
// replaced one of the same tick.
func (in *inbound) take(tick uint32, body []byte) (newer, replaces bool) {
	if in.any && int32(tick-in.tick) <= 0 {
		return false, false
	}
	replaces = in.fresh
	*in = inbound{any: true, fresh: true, tick: tick, body: body}
	return true, replaces
}

// outbound is the newest message of the own stream, until Flush sends it.
type outbound struct {
	due  bool
	tick uint32
	body []byte
}
