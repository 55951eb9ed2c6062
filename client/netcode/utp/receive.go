package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

// Receive takes a datagram from the network. The bytes are the caller's again
// when it returns. What it brought about is to be asked of NextEvent, and
// leaves with the next Flush. It never fails: the outcome is for tests and
// logs, and is counted.
func (e *Endpoint) Receive(from address.Addr, pkt []byte) Outcome {
	o := e.receive(from, pkt)
	e.stats.Received++
	e.stats.ReceivedBytes += uint64(len(pkt))
	e.stats.Outcomes[o]++
	return o
}

func (e *Endpoint) receive(from address.Addr, pkt []byte) Outcome {
	if len(pkt) > MaxDatagram {
		return DropLarge
	}
	kind, token, err := ParseKind(pkt)
	if err != nil {
		return dropOf(err)
	}
	if kind == KindRequest {
		return e.request(from, pkt)
	}
	c := e.tokens[token]
	if c == nil {
		return DropToken
	}
	switch kind {
	case KindAccept:
		return e.accept(c, from, pkt)
	case KindData:
		return e.data(c, from, pkt)
	case KindDisconnect:
		return e.disconnect(c, from, pkt)
	case KindHeartbeat:
		_, err = ParseHeartbeat(pkt)
	case KindMTUCheck:
		return e.mtuCheck(c, from, pkt)
	case KindMTUAck:
		_, err = ParseMTUAck(pkt)
	}
	if err != nil {
		return dropOf(err)
	}
	return e.hear(c, from, len(pkt))
}

// hear notes a valid message of a connection. It answers the attempt of a
// client, even if the accept was lost; it proves that a client exists; and it
// moves an established connection to where its peer is now.
func (e *Endpoint) hear(c *conn, from address.Addr, size int) Outcome {
	if from != c.addr {
		if c.state != StateEstablished || e.cfg.FixedAddress {
			return DropForeign
		}
		c.addr = from
		c.stats.Roams++
	}
	c.heard = e.now
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(size)
	switch c.state {
	case StateConnecting:
		e.connected(c, nil)
	case StateHalfOpen:
		e.leaveHalfOpen(c)
		c.state = StateEstablished
		c.acceptDue = false
	}
	return Taken
}

func (e *Endpoint) connected(c *conn, payload []byte) {
	c.state = StateEstablished
	e.events.push(Event{Kind: EventConnected, Conn: c.id}, payload)
}

// disconnect takes the peer's word that it is over.
func (e *Endpoint) disconnect(c *conn, from address.Addr, pkt []byte) Outcome {
	if _, err := ParseDisconnect(pkt); err != nil {
		return dropOf(err)
	}
	if from != c.addr && (c.state != StateEstablished || e.cfg.FixedAddress) {
		return DropForeign
	}
	e.end(c, ReasonClosedByRemote, nil)
	if c.incoming {
		e.closed.add(c.token)
	}
	return Taken
}

// mtuCheck answers with the size of the datagram as it was on the socket.
func (e *Endpoint) mtuCheck(c *conn, from address.Addr, pkt []byte) Outcome {
	if _, err := ParseMTUCheck(pkt); err != nil {
		return dropOf(err)
	}
	if o := e.hear(c, from, len(pkt)); o != Taken {
		return o
	}
	if e.out.room(1) {
		size := len(pkt) + e.cfg.Overhead
		e.emit(c, MTUAck{Token: c.token, Size: uint16(size)}.Append(e.out.open()))
	}
	return Taken
}

// data takes a data packet through the stages of its pipeline.
func (e *Endpoint) data(c *conn, from address.Addr, pkt []byte) Outcome {
	m, err := ParseData(pkt)
	if err != nil {
		return dropOf(err)
	}
	if o := e.hear(c, from, len(pkt)); o != Taken {
		return o
	}
	if int(m.Pipeline) >= len(e.layouts) {
		return DropPipeline
	}
	if e.events.full() {
		return DropQueue
	}
	switch e.layouts[m.Pipeline].order {
	case StageReliableSequenced:
		return e.takeReliable(c, m.Pipeline, m.Body)
	case StageUnreliableSequenced:
		return e.takeSequenced(c, m.Pipeline, m.Body)
	}
	return e.deliver(c, m.Pipeline, m.Body)
}

func (e *Endpoint) takeSequenced(c *conn, p PipelineID, body []byte) Outcome {
	h, rest, err := ParseSequenced(body)
	if err != nil {
		return DropStage
	}
	ln := &c.lanes[p]
	ahead := h.Sequence - ln.newest
	if ahead == 0 || ahead >= 1<<15 {
		c.stats.Late++
		return DropLate
	}
	c.stats.Lost += uint64(ahead - 1)
	ln.newest = h.Sequence
	return e.deliver(c, p, rest)
}

func (e *Endpoint) takeReliable(c *conn, p PipelineID, body []byte) Outcome {
	r := c.lanes[p].reliable
	wide := e.layouts[p].wide
	if mismatched(body, wide) && !r.proven {
		e.end(c, ReasonProtocolError, ErrWindowMismatch)
		e.sayFarewell(c)
		return DropMismatch
	}
	h, rest, err := ParseReliable(body, wide)
	if err != nil {
		return DropStage
	}
	r.acknowledged(h, e.now, e.times.resend, &e.pool)
	c.measured(r)
	if h.Ack {
		r.proven = r.proven || len(rest) == 1
		return Taken
	}
	sequence, arrival := r.receiver.arrived(h.Sequence, e.now)
	switch arrival {
	case arrivedStray:
		return DropLate
	case arrivedCopy:
		c.stats.Duplicates++
		return DropLate
	case arrivedEarly:
		r.receiver.keep(sequence, e.pool.hold(nil, rest))
		return Taken
	}
	o := e.deliver(c, p, rest)
	for body := r.receiver.ready(); body != nil; body = r.receiver.ready() {
		e.deliver(c, p, body)
		e.pool.release(body)
	}
	return o
}

// mismatched reports whether the bytes are a pure acknowledgement with a mask
// of the other size, as a peer whose window is on the other side of 32 sends
// it. Nothing else on the wire betrays that.
func mismatched(body []byte, wide bool) bool {
	return len(body) == reliableLen(!wide)+1 && body[0] == 1 && body[1] == 0
}

// deliver takes what the sequenced stages have let through.
func (e *Endpoint) deliver(c *conn, p PipelineID, body []byte) Outcome {
	if !e.layouts[p].fragment {
		e.events.push(Event{Kind: EventData, Conn: c.id, Pipeline: p}, body)
		return Taken
	}
	h, piece, err := ParseFragment(body)
	if err != nil {
		return DropStage
	}
	msg, o, whole := c.lanes[p].assembly.add(h, piece, e.cfg.FragmentCapacity)
	if whole {
		e.events.push(Event{Kind: EventData, Conn: c.id, Pipeline: p}, msg)
	}
	if o != Taken {
		c.stats.Broken++
	}
	return o
}
