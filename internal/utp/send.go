package utp

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Send queues a payload on a pipeline; 0 is none. The bytes are the caller's
// again when it returns. A message on a pipeline with fragmentation leaves
// whole or not at all.
//
// Errors: ErrConn, ErrState, ErrPipeline, ErrTooLarge, ErrQueueFull.
func (e *Endpoint) Send(id ConnID, p PipelineID, payload []byte) error {
	c := e.conn(id)
	if c == nil {
		return ErrConn
	}
	if c.state == StateConnecting {
		return ErrState
	}
	if int(p) >= len(e.layouts) {
		return ErrPipeline
	}
	l := &e.layouts[p]
	if len(payload) > l.limit {
		return ErrTooLarge
	}
	n := l.fragments(len(payload))
	if !e.out.room(n * packetsPerSend) {
		return ErrQueueFull
	}
	if r := c.pipelines[p].reliable; r != nil && r.sender.free() < n {
		return ErrQueueFull
	}
	marks := uint16(fragmentFirst)
	for i := range n {
		if i == n-1 {
			marks |= fragmentLast
		}
		e.sendPacket(c, p, marks, payload[i*l.packet:min((i+1)*l.packet, len(payload))])
		marks = 0
	}
	return nil
}

// sendPacket sends a payload that fits into one packet through the stages; the marks are those
// of the fragmentation stage, if there is one. The caller has seen that there is room.
func (e *Endpoint) sendPacket(c *conn, p PipelineID, marks uint16, payload []byte) {
	l, s := &e.layouts[p], &c.pipelines[p]
	head := make([]byte, 0, sequencedLen+fragmentLen)
	if l.order == StageUnreliableSequenced {
		head = binary.LittleEndian.AppendUint16(head, s.sequence)
		s.sequence++
	}
	if l.fragment {
		head = binary.LittleEndian.AppendUint16(head, marks|s.fragment&fragmentMask)
		s.fragment++
	}
	if r := s.reliable; r != nil {
		sequence := r.sender.add(e.now, e.pool.hold(head, payload))
		e.sendReliable(c, p, reliableHeader{sequence: uint16(sequence)}, r.sender.slot(sequence).body)
	} else if pkt := e.openData(c, p, len(head)+len(payload)); pkt != nil {
		e.emit(c, append(append(pkt, head...), payload...))
	}
}

// sendReliable sends a packet of the window, the first time or again, or a pure
// acknowledgement. It is false if the packet has to wait.
func (e *Endpoint) sendReliable(c *conn, p PipelineID, h reliableHeader, body []byte) bool {
	wide := e.layouts[p].wide
	pkt := e.openData(c, p, reliableLen(wide)+len(body))
	if pkt == nil {
		return false
	}
	c.pipelines[p].reliable.receiver.acknowledge(&h, e.now)
	e.emit(c, append(h.append(pkt, wide), body...))
	return true
}

// openData begins a data packet with size bytes behind its header, for emit, and returns nil
// if the limit for an unvalidated peer is reached.
//
// For a client that has sent nothing yet it puts the accept ahead: one that receives data
// first takes them for the accept, and some versions of UTP then close the connection. For
// one that has moved the accept has a new cookie. For a server that may not have the cookie
// yet it puts that ahead, in a request.
func (e *Endpoint) openData(c *conn, p PipelineID, size int) []byte {
	size += dataLen
	accept := c.state == StateHalfOpen || c.acceptDue && !c.validated
	if accept {
		size += e.acceptLen()
	}
	if !c.mayEmit(size) {
		c.stats.Withheld++
		return nil
	}
	switch {
	case accept:
		e.sendAccept(c)
	case len(c.cookie) > 0 && !c.confirmed:
		e.emitRequest(c)
	}
	return Packet{Kind: KindData, Token: c.token, Pipeline: p}.Append(e.out.open())
}

// acceptLen is the size of an accept in bytes.
func (e *Endpoint) acceptLen() int {
	if e.cfg.ValidateAddresses {
		return handshakeLen + lengthLen + cookieLen
	}
	return handshakeLen
}

func (e *Endpoint) sendAccept(c *conn) {
	c.acceptDue = false
	e.emit(c, e.appendAccept(c.addr, c.token))
}

// emit queues a datagram of a connection.
func (e *Endpoint) emit(c *conn, pkt []byte) {
	c.sent = e.now
	size := e.queue(c.addr, pkt)
	c.stats.Sent++
	c.stats.SentBytes += uint64(size)
	if !c.validated {
		c.budget -= size
	}
}

// queue queues what was appended to the queue's buffer, and returns its size.
func (e *Endpoint) queue(to address.Addr, pkt []byte) int {
	size := e.out.close(to, pkt)
	e.stats.Sent++
	e.stats.SentBytes += uint64(size)
	return size
}

// queueMessage queues a packet that has no body.
func (e *Endpoint) queueMessage(to address.Addr, k Kind, t Token) int {
	return e.queue(to, Packet{Kind: k, Token: t}.Append(e.out.open()))
}

// pool keeps the buffers of packets that wait for an acknowledgement or for a
// packet before them. Two sizes, because most such packets are small and a
// window of large ones would cost a hundred kilobytes per connection.
type pool struct {
	small, large [][]byte
}

const (
	smallPacket = 256  // bytes
	maxSpare    = 4096 // buffers of each size that are kept after a burst; 6 MB
)

// hold returns a copy of the bytes in a buffer of the pool. There are at most
// MaxDatagram bytes.
func (p *pool) hold(head, rest []byte) []byte {
	list, size := &p.small, smallPacket
	if len(head)+len(rest) > smallPacket {
		list, size = &p.large, maxDatagram
	}
	var buf []byte
	if n := len(*list); n > 0 {
		buf = (*list)[n-1]
		*list = (*list)[:n-1]
	} else {
		buf = make([]byte, 0, size)
	}
	return append(append(buf, head...), rest...)
}

// release takes a buffer of hold back; nil is none.
func (p *pool) release(buf []byte) {
	list := &p.small
	if cap(buf) > smallPacket {
		list = &p.large
	}
	if buf != nil && len(*list) < maxSpare {
		*list = append(*list, buf[:0])
	}
}
