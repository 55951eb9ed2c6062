package utp

import (
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utpwire"
)

// Receive takes a datagram from the network. It does not keep pkt. Resulting events come
// from NextEvent, answers leave with the next Flush, and Stats counts what was dropped.
func (e *Endpoint) Receive(from address.Addr, pkt []byte) { e.take(from, pkt) }

// take returns what became of the datagram.
func (e *Endpoint) take(from address.Addr, pkt []byte) outcome {
	o := e.receive(from, pkt)
	e.stats.Received++
	e.stats.ReceivedBytes += uint64(len(pkt))
	e.stats.outcomes[o]++
	return o
}

func (e *Endpoint) receive(from address.Addr, pkt []byte) outcome {
	if len(pkt) > utpwire.MaxDatagram {
		return dropLarge
	}
	kind, token, err := utpwire.ParseKind(pkt)
	if err != nil {
		return outcomeOf(err)
	}
	if kind == utpwire.KindRequest {
		return e.request(from, pkt)
	}
	c := e.tokens[token]
	if c == nil {
		return dropToken
	}
	switch kind {
	case utpwire.KindAccept:
		return e.accept(c, from, pkt)
	case utpwire.KindData:
		return e.data(c, from, pkt)
	case utpwire.KindDisconnect:
		return e.disconnect(c, from, pkt)
	case utpwire.KindHeartbeat:
		_, err = utpwire.ParseHeartbeat(pkt)
	case utpwire.KindMTUCheck:
		return e.mtuCheck(c, from, pkt)
	case utpwire.KindMTUAck:
		_, err = utpwire.ParseMTUAck(pkt)
	}
	if err != nil {
		return outcomeOf(err)
	}
	return e.recordMessage(c, from, len(pkt))
}

// recordMessage updates a connection after a valid message: an attempt becomes
// established, even if the accept was lost; a half-open connection becomes
// established; an established one follows its peer to a new address, which the peer has to
// prove again if this side can ask it to.
func (e *Endpoint) recordMessage(c *conn, from address.Addr, size int) outcome {
	if from != c.addr {
		if c.state != StateEstablished {
			return dropForeign
		}
		c.addr = from
		if e.cfg.ValidateAddresses && c.incoming {
			c.validated, c.budget = false, 0
		}
	}
	c.lastReceived = e.now
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(size)
	c.confirmed = true
	c.credit(size)
	switch c.state {
	case StateConnecting:
		e.connected(c, nil)
	case StateHalfOpen:
		c.state = StateEstablished
		c.acceptDue = false
	}
	if e.cfg.ValidateAddresses && !c.validated {
		c.acceptDue = true // It has a cookie for the new address.
	}
	return taken
}

func (e *Endpoint) connected(c *conn, payload []byte) {
	c.state = StateEstablished
	e.events.push(Event{Kind: EventConnected, Conn: c.id}, payload)
}

// disconnect ends a connection that the peer has closed.
func (e *Endpoint) disconnect(c *conn, from address.Addr, pkt []byte) outcome {
	if _, err := utpwire.ParseDisconnect(pkt); err != nil {
		return outcomeOf(err)
	}
	if from != c.addr && c.state != StateEstablished {
		return dropForeign
	}
	refused := c.state == StateConnecting || c.hasCookie && !c.confirmed
	e.drop(c)
	e.events.push(Event{Kind: EventDisconnected, Conn: c.id, Reason: ReasonClosedByRemote, Refused: refused}, nil)
	if c.incoming {
		e.closed.add(c.token)
	}
	return taken
}

// mtuCheck answers with the size of the datagram as it was on the socket.
func (e *Endpoint) mtuCheck(c *conn, from address.Addr, pkt []byte) outcome {
	if _, err := utpwire.ParseMTUCheck(pkt); err != nil {
		return outcomeOf(err)
	}
	if o := e.recordMessage(c, from, len(pkt)); o != taken {
		return o
	}
	if e.out.room(1) && c.mayEmit(utpwire.MTUAckLen) {
		size := len(pkt) + e.cfg.Overhead
		e.emit(c, utpwire.MTUAck{Token: c.token, Size: uint16(size)}.Append(e.out.open()))
	}
	return taken
}

// data passes a data packet through the stages of its pipeline.
func (e *Endpoint) data(c *conn, from address.Addr, pkt []byte) outcome {
	m, err := utpwire.ParseData(pkt)
	if err != nil {
		return outcomeOf(err)
	}
	if o := e.recordMessage(c, from, len(pkt)); o != taken {
		return o
	}
	p := PipelineID(m.Pipeline)
	if int(p) >= len(e.layouts) {
		return dropPipeline
	}
	if e.events.full() {
		return dropQueue
	}
	switch e.layouts[p].order {
	case StageReliableSequenced:
		return e.takeReliable(c, p, m.Body)
	case StageUnreliableSequenced:
		return e.takeSequenced(c, p, m.Body)
	}
	return e.deliver(c, p, m.Body)
}

func (e *Endpoint) takeSequenced(c *conn, p PipelineID, body []byte) outcome {
	h, rest, err := utpwire.ParseSequenced(body)
	if err != nil {
		return dropStage
	}
	ln := &c.pipelines[p]
	ahead := h.Sequence - ln.newest
	if ahead == 0 || ahead >= 1<<15 {
		c.stats.Late++
		return dropLate
	}
	c.stats.Lost += uint64(ahead - 1)
	ln.newest = h.Sequence
	return e.deliver(c, p, rest)
}

func (e *Endpoint) takeReliable(c *conn, p PipelineID, body []byte) outcome {
	r := c.pipelines[p].reliable
	wide := e.layouts[p].wide
	if hasOtherMaskSize(body, wide) && !r.windowConfirmed {
		e.end(c, ReasonProtocolError, ErrWindowMismatch)
		e.queueDisconnect(c)
		return dropMismatch
	}
	h, rest, err := utpwire.ParseReliable(body, wide)
	if err != nil {
		return dropStage
	}
	if r.acknowledged(h, e.now, e.times.resend, &e.pool) && !e.cfg.ValidateAddresses {
		e.admit(c)
	}
	c.publishRTT(r)
	if h.Ack {
		r.windowConfirmed = r.windowConfirmed || len(rest) == 1
		return taken
	}
	sequence, arrival := r.receiver.record(h.Sequence, e.now)
	switch arrival {
	case arrivalOutOfWindow:
		return dropLate
	case arrivalDuplicate:
		c.stats.Duplicates++
		e.stats.Duplicates++
		return dropLate
	case arrivalEarly:
		r.receiver.keep(sequence, e.pool.hold(nil, rest))
		return taken
	}
	o := e.deliver(c, p, rest)
	for body := r.receiver.ready(); body != nil; body = r.receiver.ready() {
		e.deliver(c, p, body)
		e.pool.release(body)
	}
	return o
}

// hasOtherMaskSize reports whether the bytes are a pure acknowledgement with a mask
// of the other size, as a peer sends it whose window is on the other side of
// 32. No other packet reveals the mismatch.
func hasOtherMaskSize(body []byte, wide bool) bool {
	return len(body) == utpwire.ReliableLen(!wide)+1 && body[0] == 1 && body[1] == 0
}

// deliver takes what the sequenced stages have let through.
func (e *Endpoint) deliver(c *conn, p PipelineID, body []byte) outcome {
	if !e.layouts[p].fragment {
		e.events.push(Event{Kind: EventData, Conn: c.id, Pipeline: p}, body)
		return taken
	}
	h, piece, err := utpwire.ParseFragment(body)
	if err != nil {
		return dropStage
	}
	msg, o, whole := c.pipelines[p].assembly.add(h, piece, e.cfg.FragmentCapacity)
	if whole {
		e.events.push(Event{Kind: EventData, Conn: c.id, Pipeline: p}, msg)
	}
	return o
}
