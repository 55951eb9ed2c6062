package netcode

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/utp"
)

type rpcStream struct {
	s        *session
	queue    rpcQueue
	received []RPC // in this tick
	partial  partialRPC
}

func (q *rpcStream) send(r RPC) error {
	s, d := q.s, q.s.d
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
		return q.sendLarge(index, hash, r.Payload, room)
	}
	if q.queue.len()+size > d.cfg.Limits.MaxRPCQueue {
		return ErrQueueFull
	}
	q.queue.add(index, hash, r.Payload)
	s.counts.RPCsSent++
	return nil
}

func (d *Driver) rpcRoom() int {
	return d.ep.MaxPayload(utp.EntitiesReliable) - utp.RPCPacketLen
}

// flush leaves what the transport's window does not take for the next tick.
func (q *rpcStream) flush() {
	s, d := q.s, q.s.d
	for q.queue.len() > 0 {
		some := q.queue.next(d.rpcRoom())
		d.scratch = append(utp.AppendRPCPacket(d.scratch[:0], d.clock.millis()), some...)
		if err := d.ep.Send(s.conn, utp.EntitiesReliable, d.scratch); err != nil {
			return
		}
		q.queue.drop(len(some))
	}
}

// take ends the connection for an RPC that is not right, and all of this tick
// with it.
func (q *rpcStream) take(b []byte) {
	s := q.s
	_, rest, ok := utp.ParseRPCPacket(b)
	if !ok && !s.handshake.versionReceived {
		s.close(ReasonProtocolError, "not an RPC packet: the transports differ, perhaps in their window", nil)
		return
	}
	if !ok {
		s.closeInvalid("not an RPC packet")
		return
	}
	for len(rest) > 0 && s.live() {
		var r utp.RPC
		if r, rest, ok = utp.ParseRPC(rest); !ok {
			s.closeInvalid("an RPC is cut off")
			return
		}
		switch {
		case r.Bits%8 != 0:
			s.closeInvalid("an RPC has trailing bits")
		case q.partial.of != nil && r.Index != indexPart:
			s.closeInvalid("another RPC between the parts of RPC " + q.partial.of.name)
		case r.Index >= firstSystem && r.Index != indexNamed:
			s.system(r.Index, r.Payload)
		default:
			if t, payload, known := s.d.table.lookup(r.Index, r.Payload); known {
				q.deliver(t, payload)
			} else {
				s.closeInvalid("an RPC is unknown")
			}
		}
	}
}

func (q *rpcStream) deliver(t *rpcType, payload []byte) {
	s := q.s
	if s.state != StateConnected && !t.approval {
		s.closeInvalid("RPC " + t.name + " before the connection is connected")
		return
	}
	if !t.valid(payload) {
		s.closeInvalid("RPC " + t.name + " has a wrong length")
		return
	}
	s.counts.RPCsReceived++
	q.received = append(q.received, RPC{hash: t.hash, Payload: payload})
}
