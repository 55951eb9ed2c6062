package netcode

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/utp"
)

// An RPC that is too large for one packet is sent in parts. Each part is an RPC of this
// package, and all but the last fill a packet. No other RPC is between them.
//
//	first part     u32 length of the payload, u16 index, u64 hash if that is indexNamed, bytes
//	further parts  bytes
const partHeaderLen = 4 + 2

const rpcLenLimit = 1 << 20

func (q *rpcQueue) addParts(head, payload []byte, room int) {
	index := uint16(indexFirstPart)
	for len(payload) > 0 {
		n := min(len(payload), room-utp.RPCLen-len(head))
		q.add(index, head, payload[:n])
		index, head, payload = indexPart, nil, payload[n:]
	}
}

// sendLarge queues an RPC of the game that needs more than one packet of room bytes. The hash is
// empty unless the index is indexNamed.
func (q *rpcStream) sendLarge(index uint16, hash, payload []byte, room int) error {
	head := make([]byte, 0, partHeaderLen+hashLen)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(payload)))
	head = binary.LittleEndian.AppendUint16(head, index)
	head = append(head, hash...)
	perPart := room - utp.RPCLen
	size := len(head) + len(payload)
	size += (size + perPart - 1) / perPart * utp.RPCLen
	switch {
	case q.s.state != StateConnected || len(payload) > q.s.d.cfg.Limits.MaxRPCLen || size > q.s.d.cfg.Limits.MaxRPCQueue:
		return ErrTooLarge
	case q.queue.len()+size > q.s.d.cfg.Limits.MaxRPCQueue:
		return ErrQueueFull
	}
	q.queue.addParts(head, payload, room)
	q.s.counts.RPCsSent++
	return nil
}

// partialRPC is a large RPC of which parts have arrived; its zero is none.
type partialRPC struct {
	of   *rpcType
	size int // announced by the first part
	buf  []byte
}

// add appends a part. The buffer is at most twice what has arrived, so that to announce a
// large RPC costs nothing, and never larger than the RPC.
func (p *partialRPC) add(b []byte) {
	if need := len(p.buf) + len(b); need > cap(p.buf) {
		p.buf = append(make([]byte, 0, min(2*need, p.size)), p.buf...)
	}
	p.buf = append(p.buf, b...)
}

func (q *rpcStream) takeFirstPart(b []byte) {
	switch {
	case q.s.state != StateConnected:
		q.s.closeInvalid("a large RPC before the connection is connected")
		return
	case len(b) < partHeaderLen:
		q.s.closeInvalid("the first part of an RPC is cut off")
		return
	}
	size := binary.LittleEndian.Uint32(b)
	t, data, known := q.s.d.table.lookup(binary.LittleEndian.Uint16(b[4:]), b[partHeaderLen:])
	switch {
	case !known:
		q.s.closeInvalid("an RPC is unknown")
	case size > uint32(q.s.d.cfg.Limits.MaxRPCLen):
		q.s.closeInvalid("RPC " + t.name + " is larger than MaxRPCLen")
	case len(data) == 0 || len(data) >= int(size):
		q.s.closeInvalid("the first part of RPC " + t.name + " has a wrong length")
	default:
		q.partial = partialRPC{of: t, size: int(size)}
		q.partial.add(data)
	}
}

func (q *rpcStream) takePart(b []byte) {
	p := &q.partial
	switch {
	case p.of == nil:
		q.s.closeInvalid("a part of an RPC without the first")
		return
	case len(b) == 0 || len(b) > p.size-len(p.buf):
		q.s.closeInvalid("a part of RPC " + p.of.name + " has a wrong length")
		return
	}
	p.add(b)
	if len(p.buf) == p.size {
		done := *p
		*p = partialRPC{}
		q.deliver(done.of, done.buf)
	}
}
