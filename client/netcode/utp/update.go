package utp

// Update ends what has waited too long. It belongs behind the Receives of a
// tick, so that a datagram that waited in the socket counts. A client that was
// never heard is not told: its address may be forged, and if it lives it asks
// again.
func (e *Endpoint) Update() {
	for _, c := range e.conns {
		if c.state == StateNone {
			continue
		}
		r, over := e.expired(c)
		if !over {
			continue
		}
		heard := c.state != StateHalfOpen
		e.end(c, r, nil)
		if heard {
			e.sayFarewell(c)
		}
	}
}

func (e *Endpoint) expired(c *conn) (Reason, bool) {
	switch c.state {
	case StateConnecting:
		return ReasonMaxConnectionAttempts,
			c.attempts >= e.cfg.ConnectAttempts && e.now-c.asked > e.times.connect
	case StateHalfOpen:
		return ReasonTimeout, e.now-c.opened > e.times.halfOpen
	}
	return ReasonTimeout, e.times.silence > 0 && e.now-c.heard > e.times.silence
}

// Flush queues what is due: requests, accepts, reliable packets again,
// acknowledgements that no data took along, heartbeats and disconnects. It
// belongs behind the Sends of a tick; then Next returns the datagrams.
func (e *Endpoint) Flush() {
	first := e.resume
	e.resume = 0
	for i := range e.conns {
		slot := (first + i) % len(e.conns)
		c := e.conns[slot]
		if c.state == StateNone {
			continue
		}
		if !e.out.room(packetsPerSend) {
			e.resume = slot // So that a full queue starves nobody for good.
			break
		}
		e.flush(c)
	}
	e.flushFarewells()
}

func (e *Endpoint) flush(c *conn) {
	if c.state == StateConnecting {
		e.ask(c)
		return
	}
	for p := range c.lanes {
		if r := c.lanes[p].reliable; r != nil {
			e.resend(c, PipelineID(p), r)
			e.acknowledge(c, PipelineID(p), r)
		}
	}
	if c.acceptDue && e.out.room(1) {
		e.sendAccept(c)
	}
	silent := e.times.heartbeat > 0 && e.now-c.sent > e.times.heartbeat
	if silent && c.state == StateEstablished && e.out.room(1) {
		e.emit(c, Heartbeat{Token: c.token}.Append(e.out.open()))
	}
}

// ask sends a request if it is time for one.
func (e *Endpoint) ask(c *conn) {
	if c.attempts >= e.cfg.ConnectAttempts || c.attempts > 0 && e.now-c.asked <= e.times.connect {
		return
	}
	c.attempts++
	c.asked = e.now
	e.emit(c, Request{Token: c.token, Payload: c.payload}.Append(e.out.open()))
}

// resend sends again what was not acknowledged in time, oldest first.
func (e *Endpoint) resend(c *conn, p PipelineID, r *reliable) {
	s := &r.sender
	for sequence := s.oldest; sequence < s.next; sequence++ {
		pkt := s.slot(sequence)
		if pkt.body == nil || e.now-pkt.last <= r.rtt.timeout {
			continue
		}
		if !e.out.room(packetsPerSend) {
			return
		}
		pkt.last = e.now
		if e.sendReliable(c, p, sequence) {
			c.stats.Resent++
		}
	}
}

// acknowledge sends an acknowledgement that no payload took along. Its one
// byte of payload is part of the wire, and means nothing.
func (e *Endpoint) acknowledge(c *conn, p PipelineID, r *reliable) {
	if !r.receiver.due || !e.out.room(packetsPerSend) || !e.maySend(c) {
		return
	}
	h := r.receiver.header(e.now)
	h.Ack = true
	pkt := Data{Token: c.token, Pipeline: p}.Append(e.out.open())
	e.emit(c, append(h.Append(pkt, e.layouts[p].wide), 0))
}
