package utp

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Receive takes a datagram from the network, and does not keep pkt.
func (e *Endpoint) Receive(from address.Addr, pkt []byte) {
	o := e.receive(from, pkt)
	e.stats.Received++
	e.stats.ReceivedBytes += uint64(len(pkt))
	if o != taken {
		e.stats.Drops[string(o)]++
	}
}

func (e *Endpoint) receive(from address.Addr, pkt []byte) outcome {
	if len(pkt) > maxDatagram {
		return dropLarge
	}
	m, o := parse(pkt)
	c := e.conns.tokens[m.Token]
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
		return c.accept(from, m.Body, len(pkt))
	case m.Kind == KindDisconnect:
		return c.disconnect(from)
	}
	if o = c.record(from, len(pkt)); o != taken {
		return o
	}
	switch m.Kind {
	case KindData:
		return c.data(m.Pipeline, m.Body)
	case KindMTUCheck:
		if e.out.room(1) && c.path.permits(mtuAckLen) {
			// The size of the datagram as it was on the socket.
			size := binary.LittleEndian.AppendUint16(make([]byte, 0, mtuSizeLen), uint16(len(pkt)+e.cfg.Overhead))
			c.emit(Packet{Kind: KindMTUAck, Token: c.token, Body: size}.Append(e.out.open()))
		}
	}
	return taken
}

// record updates a connection after a valid message. An attempt is established even if the
// accept was lost; an established connection follows its peer to a new address, which the
// peer has to prove again if this side can ask it to.
func (c *conn) record(from address.Addr, size int) outcome {
	if from != c.path.addr {
		if c.state != StateEstablished {
			return dropForeign
		}
		c.path.addr = from
		if c.ep.cfg.ValidateAddresses && c.incoming {
			c.path.validated, c.path.budget = false, 0
		}
	}
	c.hear()
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(size)
	c.cookie.confirmed = true
	c.path.credit(size)
	switch c.state {
	case StateConnecting:
		c.connected(nil)
	case StateHalfOpen:
		c.state = StateEstablished
		c.acceptDue = false
	}
	if c.ep.cfg.ValidateAddresses && !c.path.validated {
		c.acceptDue = true // It has a cookie for the new address.
	}
	return taken
}

func (c *conn) hear() {
	if beat := c.ep.cfg.HeartbeatTimeout; beat != NoTimeout && c.ep.now-c.lastReceived > 2*beat {
		c.resumed = c.ep.now
	}
	c.lastReceived = c.ep.now
}

func (c *conn) disconnect(from address.Addr) outcome {
	if from != c.path.addr && c.state != StateEstablished {
		return dropForeign
	}
	refused := c.state == StateConnecting || c.cookie.unconfirmed()
	c.end(Event{Reason: ReasonClosedByRemote, Refused: refused})
	if c.incoming {
		c.ep.closing.remember(c.token)
	}
	return taken
}

func (c *conn) data(p PipelineID, body []byte) outcome {
	if int(p) >= len(c.ep.layouts) {
		return dropPipeline
	}
	if !c.ep.events.room(1) {
		return dropQueue
	}
	switch c.ep.layouts[p].order {
	case StageReliableSequenced:
		return c.takeReliable(p, body)
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
	return c.deliver(p, body)
}

func (c *conn) takeReliable(p PipelineID, body []byte) outcome {
	r, wide := c.pipelines[p].reliable, c.ep.layouts[p].wide
	if hasOtherMaskSize(body, wide) && !r.windowConfirmed {
		c.end(Event{Reason: ReasonProtocolError, Cause: ErrWindowMismatch})
		c.queueDisconnect()
		return dropMismatch
	}
	h, rest, ok := parseReliable(body, wide)
	if !ok {
		return dropStage
	}
	if r.acknowledged(h, c.ep.now, c.ep.cfg.MaxResendTime, c.resumed, &c.ep.pool) && !c.ep.cfg.ValidateAddresses {
		c.ep.Admit(c.id)
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
	if !in.record(sequence, c.ep.now) {
		c.stats.Duplicates++
		c.ep.stats.Duplicates++
		return dropLate
	}
	if sequence != in.deliver {
		*in.slot(sequence) = c.ep.pool.hold(nil, rest)
		return taken
	}
	in.deliver++
	o := c.deliver(p, rest)
	for held := in.slot(in.deliver); *held != nil; held = in.slot(in.deliver) {
		in.deliver++
		c.deliver(p, *held)
		c.ep.pool.release(*held)
		*held = nil
	}
	return o
}

// hasOtherMaskSize recognises a pure acknowledgement of a peer whose window is on
// the other side of 32: no other packet reveals that.
func hasOtherMaskSize(body []byte, wide bool) bool {
	return len(body) == reliableLen(!wide)+1 && body[0] == 1 && body[1] == 0
}

func (c *conn) deliver(p PipelineID, body []byte) outcome {
	o, whole := taken, true
	if c.ep.layouts[p].fragment {
		head, piece, ok := cutUint16(body)
		if !ok {
			return dropStage
		}
		body, o, whole = c.pipelines[p].assembly.add(head, piece, c.ep.cfg.FragmentCapacity)
	}
	if whole {
		c.push(Event{Kind: EventData, Pipeline: p}, body)
	}
	return o
}
