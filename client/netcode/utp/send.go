package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

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
	if r := c.lanes[p].reliable; r != nil && r.sender.free() < n {
		return ErrQueueFull
	}
	if !l.fragment {
		e.sendPacket(c, p, nil, payload)
		return nil
	}
	e.sendFragments(c, p, payload, n)
	return nil
}

// Free returns how many packets a pipeline of a connection takes now, 0 if it
// does not exist. Only reliable pipelines have a window; for others it is the
// room of the send queue.
func (e *Endpoint) Free(id ConnID, p PipelineID) int {
	c := e.conn(id)
	if c == nil || c.state == StateConnecting || int(p) >= len(e.layouts) {
		return 0
	}
	n := (e.out.limit - len(e.out.parcels) + e.out.next) / packetsPerSend
	if r := c.lanes[p].reliable; r != nil {
		n = min(n, r.sender.free())
	}
	return n
}

func (e *Endpoint) sendFragments(c *conn, p PipelineID, payload []byte, n int) {
	size := e.layouts[p].packet
	for i := range n {
		h := FragmentHeader{First: i == 0, Last: i == n-1, Sequence: c.lanes[p].fragment}
		c.lanes[p].fragment++ // Only its lower 14 bits leave.
		piece := payload[i*size : min((i+1)*size, len(payload))]
		var head [FragmentLen]byte
		e.sendPacket(c, p, h.Append(head[:0]), piece)
	}
}

// sendPacket sends the header of the fragmentation stage, if there is one, and
// a payload through the other stage. The caller has seen that there is room.
func (e *Endpoint) sendPacket(c *conn, p PipelineID, head, payload []byte) {
	ln := &c.lanes[p]
	if r := ln.reliable; r != nil {
		sequence := r.sender.add(e.now, e.pool.hold(head, payload))
		e.sendReliable(c, p, sequence)
		return
	}
	sequence := ln.sequence
	if e.layouts[p].order == StageUnreliableSequenced {
		ln.sequence++
	}
	if !e.maySend(c) {
		return
	}
	pkt := Data{Token: c.token, Pipeline: p}.Append(e.out.open())
	if e.layouts[p].order == StageUnreliableSequenced {
		pkt = SequencedHeader{Sequence: sequence}.Append(pkt)
	}
	pkt = append(pkt, head...)
	e.emit(c, append(pkt, payload...))
}

// sendReliable sends a packet of the window, the first time or again. It is
// false if the packet has to wait.
func (e *Endpoint) sendReliable(c *conn, p PipelineID, sequence int64) bool {
	if !e.maySend(c) {
		return false
	}
	r := c.lanes[p].reliable
	h := r.receiver.header(e.now)
	h.Sequence = uint16(sequence)
	pkt := Data{Token: c.token, Pipeline: p}.Append(e.out.open())
	pkt = h.Append(pkt, e.layouts[p].wide)
	e.emit(c, append(pkt, r.sender.slot(sequence).body...))
	return true
}

// maySend puts the accept ahead of a data packet for a client that was not
// heard yet: one that hears data first takes them for the accept, and some
// versions of UTP then close the connection. It is false when such a client
// has had all it may have.
func (e *Endpoint) maySend(c *conn) bool {
	if c.state != StateHalfOpen {
		return true
	}
	if c.credit == 0 {
		c.stats.Withheld++
		return false
	}
	c.credit--
	e.sendAccept(c)
	return true
}

func (e *Endpoint) sendAccept(c *conn) {
	c.acceptDue = false
	e.emit(c, Accept{Token: c.token, Payload: e.cfg.AcceptPayload}.Append(e.out.open()))
}

func (e *Endpoint) emitDisconnect(to address.Addr, token Token) {
	e.queue(to, Disconnect{Token: token}.Append(e.out.open()))
}

// emit queues a datagram of a connection.
func (e *Endpoint) emit(c *conn, pkt []byte) {
	c.sent = e.now
	c.stats.Sent++
	c.stats.SentBytes += uint64(e.queue(c.addr, pkt))
}

func (e *Endpoint) queue(to address.Addr, pkt []byte) int {
	size := e.out.close(to, pkt)
	e.stats.Sent++
	e.stats.SentBytes += uint64(size)
	return size
}
