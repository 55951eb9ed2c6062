package utp

import (
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Connect begins to ask for a connection with the next Flush.
//
// Errors: ErrAddr, ErrFull, and those of Config.Rand.
func (e *Endpoint) Connect(to address.Addr) (ConnID, error) {
	if ap, udp := to.UDP(); !to.IsValid() || udp && ap.Port() == 0 {
		return ConnID{}, ErrAddr
	}
	if len(e.conns.tokens) >= e.cfg.MaxConnections {
		return ConnID{}, ErrFull
	}
	token, err := e.conns.newToken(e.cfg.Rand)
	if err != nil {
		return ConnID{}, err
	}
	c := newConn(e, token, path{addr: to, validated: true}, StateConnecting)
	return c.id, nil
}

// RetryConnect makes the next Flush repeat the request of an attempt at once,
// as one of ConnectAttempts, when the last one is known to be lost.
func (e *Endpoint) RetryConnect(id ConnID) {
	c := e.conns.find(id)
	if c != nil && c.state == StateConnecting && c.attempts > 0 && c.attempts < e.cfg.ConnectAttempts {
		c.lastRequest = e.now - e.cfg.ConnectTimeout - 1
	}
}

type clientCookie struct {
	value     []byte // empty before it came
	due       bool   // it is to be returned
	confirmed bool   // the server has sent a message other than accepts
}

// unconfirmed reports whether the server may not have the cookie back yet.
func (k *clientCookie) unconfirmed() bool { return len(k.value) > 0 && !k.confirmed }

func (c *conn) sendRequest() {
	early := c.attempts > 0 && c.ep.now-c.lastRequest <= c.ep.cfg.ConnectTimeout
	due := c.cookie.due || c.cookie.unconfirmed() && !early
	if c.state == StateConnecting {
		if due = !early && c.attempts < c.ep.cfg.ConnectAttempts; due {
			c.attempts++
		}
	}
	if due && c.ep.out.room(1) {
		c.emitRequest()
	}
}

func (c *conn) emitRequest() {
	c.cookie.due, c.lastRequest = false, c.ep.now
	c.emit(Packet{Kind: KindRequest, Token: c.token, Body: c.cookie.value}.Append(c.ep.out.open()))
}

// accept takes the answer to a request of this side. Servers repeat it.
func (c *conn) accept(from address.Addr, payload []byte, size int) outcome {
	isCookie := c.ep.cfg.ValidateAddresses && !c.incoming && len(payload) == cookieLen
	if c.state != StateConnecting && !isCookie {
		return dropState
	}
	if from != c.path.addr {
		return dropForeign
	}
	c.hear()
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(size)
	if isCookie {
		c.cookie.value, c.cookie.due, payload = append(c.cookie.value[:0], payload...), true, nil
	}
	if c.state == StateConnecting {
		c.connected(payload)
	}
	return taken
}

func (c *conn) connected(payload []byte) {
	c.state = StateEstablished
	c.push(Event{Kind: EventConnected}, payload)
}

func (e *Endpoint) request(c *conn, from address.Addr, m Packet, size int) outcome {
	payload, proven := m.Body, false
	if e.cfg.ValidateAddresses {
		payload, proven = e.cookies.verify(from, m, e.now)
	}
	switch {
	case c != nil:
		return c.requestAgain(from, size, proven)
	case !e.listening:
		e.refuse(from, m.Token, true)
		return dropListening
	case slices.Contains(e.closing.tokens, m.Token):
		return dropClosed
	case !e.events.room(1):
		return dropQueue
	}
	if o := e.makeRoom(from); o != taken {
		if o == dropFull || o == dropHalfOpen {
			e.refuse(from, m.Token, false)
		}
		return o
	}
	if e.cfg.ValidateAddresses && !proven {
		// Nothing is kept. The answers take at most half of the queue, so that a flood of
		// requests leaves room for the players.
		if !e.out.room(e.cfg.SendQueue / 2) {
			return dropQueue
		}
		e.out.sendPacket(from, e.cookies.accept(from, m.Token, e.now))
		return taken
	}
	c = newConn(e, m.Token, path{addr: from, validated: proven}, StateHalfOpen)
	c.incoming, c.acceptDue = true, !proven
	if proven {
		c.state = StateEstablished
	}
	c.path.credit(size)
	e.halfOpen.add(c)
	c.push(Event{Kind: EventIncoming}, payload)
	return taken
}

// requestAgain takes a request of a known token: the accept was lost, or is
// still on its way, or the client has moved and proves its new address.
func (c *conn) requestAgain(from address.Addr, size int, proven bool) outcome {
	if !c.incoming {
		return dropState
	}
	if from != c.path.addr {
		return dropForeign
	}
	c.hear()
	c.path.credit(size)
	c.path.validated = c.path.validated || proven
	c.acceptDue = c.acceptDue || !c.ep.cfg.ValidateAddresses
	return taken
}

func (c *conn) sendAccept() {
	c.acceptDue = false
	c.emit(c.ep.cookies.accept(c.path.addr, c.token, c.ep.now).Append(c.ep.out.open()))
}

// refuse keeps nothing. A side that does not listen accepts first, as UTP does.
func (e *Endpoint) refuse(to address.Addr, token Token, acceptFirst bool) {
	if !e.out.room(2) || !e.refusals.take() {
		return
	}
	e.stats.Refused++
	if acceptFirst {
		e.out.sendPacket(to, Packet{Kind: KindAccept, Token: token})
	}
	e.out.sendPacket(to, Packet{Kind: KindDisconnect, Token: token})
}

// refusalLimit is a token bucket for answers to clients that get no connection, whose addresses
// may be forged: maxRefusals per second, each for a second of what is saved.
type refusalLimit time.Duration

const (
	maxRefusals     = 100
	allRefusals     = refusalLimit(maxRefusals * time.Second)
	priceOfARefusal = refusalLimit(time.Second)
)

func (l *refusalLimit) refill(passed time.Duration) {
	*l = min(*l+refusalLimit(min(passed, time.Second)*maxRefusals), allRefusals)
}

func (l *refusalLimit) take() bool {
	if *l < priceOfARefusal {
		return false
	}
	*l -= priceOfARefusal
	return true
}
