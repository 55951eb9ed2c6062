package utp

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Send queues a payload on a pipeline; 0 is none. A message on a pipeline with
// fragmentation leaves whole or not at all.
//
// Errors: ErrConn, ErrState, ErrPipeline, ErrTooLarge, ErrQueueFull.
func (e *Endpoint) Send(id ConnID, p PipelineID, payload []byte) error {
	c := e.conns.find(id)
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
		c.sendPacket(p, marks, payload[i*l.packet:min((i+1)*l.packet, len(payload))])
		marks = 0
	}
	return nil
}

// sendPacket sends a payload that fits into one packet. The caller has seen that there is
// room.
func (c *conn) sendPacket(p PipelineID, marks uint16, payload []byte) {
	l, s := &c.ep.layouts[p], &c.pipelines[p]
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
		sequence := r.sender.add(c.ep.now, c.ep.pool.hold(head, payload))
		c.sendReliable(p, reliableHeader{sequence: uint16(sequence)}, r.sender.slot(sequence).body)
	} else if pkt := c.openData(p, len(head)+len(payload)); pkt != nil {
		c.emit(append(append(pkt, head...), payload...))
	}
}

// sendReliable is false if the packet has to wait.
func (c *conn) sendReliable(p PipelineID, h reliableHeader, body []byte) bool {
	wide := c.ep.layouts[p].wide
	pkt := c.openData(p, reliableLen(wide)+len(body))
	if pkt == nil {
		return false
	}
	c.pipelines[p].reliable.receiver.acknowledge(&h, c.ep.now)
	c.emit(append(h.append(pkt, wide), body...))
	return true
}

// openData begins a data packet with size bytes behind its header, and returns nil if the
// limit for an unvalidated peer is reached.
//
// An accept goes ahead to a client that has sent nothing yet: some versions of UTP close a
// connection on data before it. To one that has moved it has a new cookie. A request with
// the cookie goes ahead to a server that may not have it.
func (c *conn) openData(p PipelineID, size int) []byte {
	size += dataLen
	accept := c.state == StateHalfOpen || c.acceptDue && !c.path.validated
	if accept {
		size += c.ep.cfg.acceptLen()
	}
	if !c.path.permits(size) {
		c.stats.Withheld++
		return nil
	}
	switch {
	case accept:
		c.sendAccept()
	case c.cookie.unconfirmed():
		c.emitRequest()
	}
	return Packet{Kind: KindData, Token: c.token, Pipeline: p}.Append(c.ep.out.open())
}

func (c *conn) emit(pkt []byte) {
	c.sent = c.ep.now
	size := c.ep.out.send(c.path.addr, pkt)
	c.stats.Sent++
	c.stats.SentBytes += uint64(size)
	c.path.charge(size)
}

type output struct {
	queue[address.Addr]
	sent, sentBytes uint64
}

func (o *output) send(to address.Addr, pkt []byte) int {
	size := o.close(to, pkt)
	o.sent++
	o.sentBytes += uint64(size)
	return size
}

func (o *output) sendPacket(to address.Addr, m Packet) { o.send(to, m.Append(o.open())) }

// pool keeps the buffers of packets that wait. Two sizes, since a window of
// large ones would cost a hundred kilobytes per connection.
type pool struct {
	small, large [][]byte
}

const (
	smallPacket = 256  // bytes
	maxSpare    = 4096 // buffers of each size that are kept after a burst; 6 MB
)

// hold copies at most MaxDatagram bytes to a buffer of the pool.
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

func (p *pool) release(buf []byte) {
	list := &p.small
	if cap(buf) > smallPacket {
		list = &p.large
	}
	if buf != nil && len(*list) < maxSpare {
		*list = append(*list, buf[:0])
	}
}

func (c *conn) flush() {
	if c.state == StateConnecting {
		c.sendRequest()
		return
	}
	for p := range c.pipelines {
		if r := c.pipelines[p].reliable; r != nil {
			c.resend(PipelineID(p), r)
			if r.receiver.due && c.ep.out.room(packetsPerSend) {
				// The format requires a byte, which has no meaning.
				c.sendReliable(PipelineID(p), reliableHeader{kind: reliableAck}, []byte{0})
			}
		}
	}
	switch {
	case !c.incoming:
		c.sendRequest()
	case c.acceptDue && c.path.permits(c.ep.cfg.acceptLen()) && c.ep.out.room(1):
		c.sendAccept()
	}
	silent := c.ep.cfg.HeartbeatTimeout != NoTimeout && c.ep.now-c.sent > c.ep.cfg.HeartbeatTimeout
	if silent && c.state == StateEstablished && c.path.permits(messageLen) && c.ep.out.room(1) {
		c.emit(Packet{Kind: KindHeartbeat, Token: c.token}.Append(c.ep.out.open()))
	}
}

func (c *conn) resend(p PipelineID, r *reliable) {
	s := &r.sender
	for sequence := s.oldest; sequence < s.next; sequence++ {
		pkt := s.slot(sequence)
		if pkt.body == nil || c.ep.now-pkt.last <= r.rtt.timeout {
			continue
		}
		if !c.ep.out.room(packetsPerSend) {
			return
		}
		pkt.last = c.ep.now
		if c.sendReliable(p, reliableHeader{sequence: uint16(sequence)}, pkt.body) {
			c.stats.Resent++
			c.ep.stats.Resent++
		}
	}
}
