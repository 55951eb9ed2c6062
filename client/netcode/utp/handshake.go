package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

// request takes a client's wish for a connection. It is established at once:
// the wire has no challenge.
func (e *Endpoint) request(from address.Addr, pkt []byte) Outcome {
	m, err := ParseRequest(pkt)
	if err != nil {
		return dropOf(err)
	}
	if c := e.tokens[m.Token]; c != nil {
		return e.requestAgain(c, from)
	}
	if !e.listening {
		e.turnAway(from, m.Token, true)
		return DropListening
	}
	if e.closed.has(m.Token) {
		return DropClosed
	}
	if e.events.full() {
		return DropQueue
	}
	if o := e.crowded(from); o != Taken {
		if o == DropFull {
			e.turnAway(from, m.Token, false)
		}
		return o
	}
	c := e.newConn(m.Token, from, StateHalfOpen)
	c.incoming, c.acceptDue = true, true
	e.enterHalfOpen(c)
	e.stats.Incoming++
	e.events.push(Event{Kind: EventIncoming, Conn: c.id}, m.Payload)
	return Taken
}

// requestAgain takes a request of a known token: the accept was lost, or is
// still on its way.
func (e *Endpoint) requestAgain(c *conn, from address.Addr) Outcome {
	if !c.incoming {
		return DropState
	}
	if from != c.addr {
		return DropForeign
	}
	c.heard = e.now
	c.acceptDue = true
	c.credit = unheardCredit
	return Taken
}

// turnAway tells a client, without any state, that it gets no connection: a
// lone disconnect ends its attempt. A side that does not listen accepts first,
// as Unity's does.
func (e *Endpoint) turnAway(to address.Addr, token Token, acceptFirst bool) {
	if !e.out.room(2) || !e.refusals.allow() {
		e.stats.Unrefused++
		return
	}
	e.stats.Refused++
	if acceptFirst {
		e.queue(to, Accept{Token: token}.Append(e.out.open()))
	}
	e.emitDisconnect(to, token)
}

// accept takes the answer to a request of this side. Servers repeat it.
func (e *Endpoint) accept(c *conn, from address.Addr, pkt []byte) Outcome {
	m, err := ParseAccept(pkt)
	if err != nil {
		return dropOf(err)
	}
	if c.state != StateConnecting {
		return DropState
	}
	if from != c.addr {
		return DropForeign
	}
	c.heard = e.now
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(len(pkt))
	e.connected(c, m.Payload)
	return Taken
}
