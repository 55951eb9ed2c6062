package utp

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Receive takes a datagram from the network. It does not keep pkt. Resulting events come
// from NextEvent, answers leave with the next Flush, and Stats counts what was dropped.
func (e *Endpoint) Receive(from address.Addr, pkt []byte) { e.take(from, pkt) }

// take returns what became of the datagram.
func (e *Endpoint) take(from address.Addr, pkt []byte) outcome {
	o := e.receive(from, pkt)
	e.stats.Received++
	e.stats.ReceivedBytes += uint64(len(pkt))
	if o != taken {
		e.stats.Drops[string(o)]++
	}
	return o
}

func (e *Endpoint) receive(from address.Addr, pkt []byte) outcome {
	if len(pkt) > maxDatagram {
		return dropLarge
	}
	m, o := parse(pkt)
	c := e.tokens[m.Token]
	switch {
	case m.Kind == KindRequest && o == taken:
		return e.request(c, from, m, len(pkt))
	case m.Kind == 0 || m.Kind == KindRequest:
		return o
	case c == nil:
		return dropToken
	case o != taken:
		return o
	case m.Kind == KindAccept:
		return e.accept(c, from, m.Body, len(pkt))
	case m.Kind == KindDisconnect:
		return e.disconnect(c, from)
	}
	if o = e.recordMessage(c, from, len(pkt)); o != taken {
		return o
	}
	switch m.Kind {
	case KindData:
		return e.data(c, m.Pipeline, m.Body)
	case KindMTUCheck:
		if e.out.room(1) && c.mayEmit(mtuAckLen) {
			// The size of the datagram as it was on the socket.
			size := binary.LittleEndian.AppendUint16(make([]byte, 0, mtuSizeLen), uint16(len(pkt)+e.cfg.Overhead))
			e.emit(c, Packet{Kind: KindMTUAck, Token: c.token, Body: size}.Append(e.out.open()))
		}
	}
	return taken
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
	e.hear(c)
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

// hear notes that the peer was heard now. Two missing heartbeats are a silence.
func (e *Endpoint) hear(c *conn) {
	if beat := e.cfg.HeartbeatTimeout; beat != NoTimeout && e.now-c.lastReceived > 2*beat {
		c.resumed = e.now
	}
	c.lastReceived = e.now
}

func (e *Endpoint) connected(c *conn, payload []byte) {
	c.state = StateEstablished
	e.push(c, Event{Kind: EventConnected}, payload)
}

// disconnect ends a connection that the peer has closed.
func (e *Endpoint) disconnect(c *conn, from address.Addr) outcome {
	if from != c.addr && c.state != StateEstablished {
		return dropForeign
	}
	refused := c.state == StateConnecting || len(c.cookie) > 0 && !c.confirmed
	e.end(c, Event{Reason: ReasonClosedByRemote, Refused: refused})
	if c.incoming {
		e.rememberClosed(c.token)
	}
	return taken
}

// data passes the body of a data packet through the stages of its pipeline.
func (e *Endpoint) data(c *conn, p PipelineID, body []byte) outcome {
	if int(p) >= len(e.layouts) {
		return dropPipeline
	}
	if !e.events.room(1) {
		return dropQueue
	}
	switch e.layouts[p].order {
	case StageReliableSequenced:
		return e.takeReliable(c, p, body)
	case StageUnreliableSequenced:
		sequence, rest, ok := cutUint16(body)
		if !ok {
			return dropStage
		}
		s := &c.pipelines[p]
		skipped := sequence - s.expected
		if skipped >= 1<<15-1 {
			c.stats.Late++
			return dropLate
		}
		c.stats.Lost += uint64(skipped)
		s.expected = sequence + 1
		body = rest
	}
	return e.deliver(c, p, body)
}

func (e *Endpoint) takeReliable(c *conn, p PipelineID, body []byte) outcome {
	r, wide := c.pipelines[p].reliable, e.layouts[p].wide
	if hasOtherMaskSize(body, wide) && !r.windowConfirmed {
		e.end(c, Event{Reason: ReasonProtocolError, Cause: ErrWindowMismatch})
		e.queueDisconnect(c)
		return dropMismatch
	}
	h, rest, ok := parseReliable(body, wide)
	if !ok {
		return dropStage
	}
	if r.acknowledged(h, e.now, e.cfg.MaxResendTime, c.resumed, &e.pool) && !e.cfg.ValidateAddresses {
		e.Admit(c.id)
	}
	r.rtt.publish(&c.stats)
	if h.kind == reliableAck {
		r.windowConfirmed = r.windowConfirmed || len(rest) == 1
		return taken
	}
	in := &r.receiver
	sequence := unwrap(h.sequence, in.deliver)
	if !in.inWindow(sequence) {
		return dropLate
	}
	if !in.record(sequence, e.now) {
		c.stats.Duplicates++
		e.stats.Duplicates++
		return dropLate
	}
	if sequence != in.deliver {
		*in.slot(sequence) = e.pool.hold(nil, rest)
		return taken
	}
	in.deliver++
	o := e.deliver(c, p, rest)
	for held := in.slot(in.deliver); *held != nil; held = in.slot(in.deliver) {
		in.deliver++
		e.deliver(c, p, *held)
		e.pool.release(*held)
		*held = nil
	}
	return o
}

// hasOtherMaskSize reports whether the bytes are a pure acknowledgement with a mask
// of the other size, as a peer sends it whose window is on the other side of
// 32. No other packet reveals the mismatch.
func hasOtherMaskSize(body []byte, wide bool) bool {
	return len(body) == reliableLen(!wide)+1 && body[0] == 1 && body[1] == 0
}

// deliver takes what the sequenced stages have let through.
func (e *Endpoint) deliver(c *conn, p PipelineID, body []byte) outcome {
	o, whole := taken, true
	if e.layouts[p].fragment {
		head, piece, ok := cutUint16(body)
		if !ok {
			return dropStage
		}
		body, o, whole = c.pipelines[p].assembly.add(head, piece, e.cfg.FragmentCapacity)
	}
	if whole {
		e.push(c, Event{Kind: EventData, Pipeline: p}, body)
	}
	return o
}
