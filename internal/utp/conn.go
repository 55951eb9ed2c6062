package utp

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// ConnID names one connection of an endpoint. It is comparable, is never used
// again, and its zero is no connection.
type ConnID struct {
	slot       uint32
	generation uint32 // from 1
}

// Index returns a small number, from 0, that no other connection has at the
// same time. Later connections use it again.
func (id ConnID) Index() int { return int(id.slot) }

// String returns index and generation, as in 3.1.
func (id ConnID) String() string { return fmt.Sprintf("%d.%d", id.slot, id.generation) }

// State is where a connection stands.
type State uint8

// The states.
const (
	// StateNone: the connection has ended or never was.
	StateNone State = iota
	// StateConnecting: this side sent a request and has no answer yet.
	StateConnecting
	// StateHalfOpen: the other side sent a request and nothing since. Datagrams
	// may be sent already.
	StateHalfOpen
	// StateEstablished: both sides have received a message of the other.
	StateEstablished
)

// String returns the name of the state, or state(n).
func (s State) String() string { return nameOf(stateNames, "state", uint8(s)) }

var stateNames = []string{"none", "connecting", "half-open", "established"}

// nameOf returns a name of a list, or the kind of the list with n.
func nameOf(names []string, kind string, n uint8) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", kind, n)
}

// conn is one connection. Times are of the endpoint's clock.
type conn struct {
	id       ConnID
	state    State
	incoming bool
	token    Token
	addr     address.Addr

	opened       time.Duration
	lastReceived time.Duration // last valid message
	resumed      time.Duration // when the peer was heard again after a silence
	sent         time.Duration // last datagram
	lastRequest  time.Duration // last request
	attempts     int           // requests sent

	acceptDue bool // a request is to be answered
	waiting   bool // in the endpoint's list of half-open connections
	validated bool // the peer has proven its address, or this side chose it
	budget    int  // bytes that may still be sent to an unvalidated peer

	// Of a client with ValidateAddresses:
	cookie     []byte // the server's, empty before it came
	confirmed  bool   // the server has sent a message other than accepts
	requestDue bool   // the cookie is to be returned

	pipelines []pipelineState
	stats     Stats
}

// conn returns a live connection, or nil.
func (e *Endpoint) conn(id ConnID) *conn {
	if int64(id.slot) < int64(len(e.conns)) {
		if c := e.conns[id.slot]; c.id == id && c.state != StateNone {
			return c
		}
	}
	return nil
}

// newConn puts a connection into the table, in a slot that is free.
func (e *Endpoint) newConn(token Token, to address.Addr, s State) *conn {
	var c *conn
	if n := len(e.free); n > 0 {
		c = e.conns[e.free[n-1]]
		e.free = e.free[:n-1]
	} else {
		c = &conn{id: ConnID{slot: uint32(len(e.conns))}, pipelines: e.newPipelineStates()}
		e.conns = append(e.conns, c)
	}
	id := ConnID{slot: c.id.slot, generation: c.id.generation + 1}
	if id.generation == 0 {
		id.generation = 1
	}
	*c = conn{
		id: id, state: s, token: token, addr: to, pipelines: c.pipelines, cookie: c.cookie[:0],
		opened: e.now, lastReceived: e.now, sent: e.now,
		stats: Stats{RTT: 50 * time.Millisecond, RTTVariation: 5 * time.Millisecond},
	}
	e.tokens[token] = c
	return c
}

// drop takes a connection out of the table and sends nothing.
func (e *Endpoint) drop(c *conn) {
	if c.waiting {
		e.leaveHalfOpen(c)
	}
	c.state = StateNone
	e.resetPipelines(c.pipelines)
	delete(e.tokens, c.token)
	e.free = append(e.free, c.id.slot)
}

// end drops a connection and queues the event, which has its reason.
func (e *Endpoint) end(c *conn, ev Event) {
	e.drop(c)
	ev.Kind = EventDisconnected
	e.push(c, ev, nil)
}

// push queues an event of a connection with a copy of its data.
func (e *Endpoint) push(c *conn, ev Event, data []byte) {
	ev.Conn = c.id
	e.events.close(ev, append(e.events.buf, data...))
}

// Connect begins to ask for a connection; the first request leaves with the
// next Flush. EventConnected or EventDisconnected tells what came of it.
//
// Errors: ErrAddr, ErrFull, and those of Config.Rand.
func (e *Endpoint) Connect(to address.Addr) (ConnID, error) {
	if ap, udp := to.UDP(); !to.IsValid() || udp && ap.Port() == 0 {
		return ConnID{}, ErrAddr
	}
	if len(e.tokens) >= e.cfg.MaxConnections {
		return ConnID{}, ErrFull
	}
	token, err := e.newToken()
	if err != nil {
		return ConnID{}, err
	}
	c := e.newConn(token, to, StateConnecting)
	c.validated = true
	return c.id, nil
}

// newToken returns a token that no connection here has.
func (e *Endpoint) newToken() (Token, error) {
	for range 8 { // A good source needs one try, one that repeats itself never ends.
		var b [tokenLen]byte
		if _, err := io.ReadFull(e.cfg.Rand, b[:]); err != nil {
			return 0, fmt.Errorf("utp: no random token: %w", err)
		}
		token := Token(binary.LittleEndian.Uint64(b[:]))
		if e.tokens[token] == nil {
			return token, nil
		}
	}
	return 0, fmt.Errorf("%w: Rand repeats itself", ErrConfig)
}

// Disconnect ends a connection from this side; no event follows. The next three
// flushes send the peer a disconnect, after the data that was sent before. What the peer
// had not acknowledged is lost. It does nothing to a connection that has ended.
func (e *Endpoint) Disconnect(id ConnID) {
	c := e.conn(id)
	if c == nil {
		return
	}
	e.drop(c)
	if c.attempts > 0 || c.incoming {
		e.queueDisconnect(c)
	}
}

// RetryConnect makes the next Flush repeat the request of an attempt at once,
// without waiting for ConnectTimeout, if a request was sent before. It is for a
// caller that knows that the last request was lost. It counts as one of
// ConnectAttempts.
func (e *Endpoint) RetryConnect(id ConnID) {
	c := e.conn(id)
	if c != nil && c.state == StateConnecting && c.attempts > 0 && c.attempts < e.cfg.ConnectAttempts {
		c.lastRequest = e.now - e.cfg.ConnectTimeout - 1
	}
}

// DropPeer ends the connections with a peer that the link reports as gone, as a
// relay does by DISCONNECT. Every connection with this address ends with ReasonProtocolError,
// as Unity reports it, and with the cause, ErrPeerGone if that is nil.
func (e *Endpoint) DropPeer(at address.Addr, cause error) {
	if cause == nil {
		cause = ErrPeerGone
	}
	for _, c := range e.conns {
		if c.state != StateNone && c.addr == at {
			e.end(c, Event{Reason: ReasonProtocolError, Cause: cause})
		}
	}
}

// request processes a connection request. The connection is nil if the token is unknown.
func (e *Endpoint) request(c *conn, from address.Addr, m Packet, size int) outcome {
	payload, proven := m.Body, false
	if e.cfg.ValidateAddresses {
		payload, proven = e.cookies.verify(from, m, e.now)
	}
	switch {
	case c != nil:
		return e.requestAgain(c, from, size, proven)
	case !e.listening:
		e.refuse(from, m.Token, true)
		return dropListening
	case slices.Contains(e.closed, m.Token):
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
		e.queue(from, e.appendAccept(from, m.Token))
		return taken
	}
	c = e.newConn(m.Token, from, StateHalfOpen)
	c.incoming, c.validated, c.acceptDue, c.waiting = true, proven, !proven, true
	if proven {
		c.state = StateEstablished
	}
	c.credit(size)
	e.halfOpen = append(e.halfOpen, c)
	e.push(c, Event{Kind: EventIncoming}, payload)
	return taken
}

// requestAgain takes a request of a known token: the accept was lost, or is
// still on its way, or the client has moved and proves its new address.
func (e *Endpoint) requestAgain(c *conn, from address.Addr, size int, proven bool) outcome {
	if !c.incoming {
		return dropState
	}
	if from != c.addr {
		return dropForeign
	}
	e.hear(c)
	c.credit(size)
	c.validated = c.validated || proven
	c.acceptDue = c.acceptDue || !e.cfg.ValidateAddresses
	return taken
}

// refuse answers a request statelessly with a disconnect, which ends the
// client's attempt. A side that does not listen sends an accept first, as UTP does.
func (e *Endpoint) refuse(to address.Addr, token Token, acceptFirst bool) {
	if !e.out.room(2) || e.refusals < time.Second {
		return
	}
	e.refusals -= time.Second
	e.stats.Refused++
	if acceptFirst {
		e.queue(to, Packet{Kind: KindAccept, Token: token}.Append(e.out.open()))
	}
	e.queueMessage(to, KindDisconnect, token)
}

// accept takes the answer to a request of this side. Servers repeat it.
func (e *Endpoint) accept(c *conn, from address.Addr, payload []byte, size int) outcome {
	isCookie := e.cfg.ValidateAddresses && !c.incoming && len(payload) == cookieLen
	if c.state != StateConnecting && !isCookie {
		return dropState
	}
	if from != c.addr {
		return dropForeign
	}
	e.hear(c)
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(size)
	if isCookie {
		c.cookie, c.requestDue, payload = append(c.cookie[:0], payload...), true, nil
	}
	if c.state == StateConnecting {
		e.connected(c, payload)
	}
	return taken
}

// pendingDisconnect is a disconnect that is repeated, since it is not acknowledged.
type pendingDisconnect struct {
	to    address.Addr
	token Token
	left  int // copies to send
}

// disconnectCopies is in how many flushes a disconnect leaves. Unity sends one;
// it drops the others as of an unknown token.
const disconnectCopies = 3

// closedTokens is how many tokens of closed connections are remembered. A
// client takes a new token for a new connection, so a request with one of
// these is a late copy.
const closedTokens = 256

func (e *Endpoint) rememberClosed(t Token) {
	if len(e.closed) == closedTokens {
		e.closed = slices.Delete(e.closed, 0, 1)
	}
	e.closed = append(e.closed, t)
}

// queueDisconnect begins to send disconnects. They leave in Flush, behind the data that was
// sent before. Peers beyond the limit of the list run into their timeout.
func (e *Endpoint) queueDisconnect(c *conn) {
	if c.incoming {
		e.rememberClosed(c.token)
	}
	copies := disconnectCopies
	if !c.validated {
		copies = min(copies, c.budget/messageLen)
	}
	if copies > 0 && len(e.disconnects) < disconnectCopies*e.cfg.MaxConnections {
		e.disconnects = append(e.disconnects, pendingDisconnect{to: c.addr, token: c.token, left: copies})
	}
}

func (e *Endpoint) flushDisconnects() {
	for i := range e.disconnects {
		if d := &e.disconnects[i]; e.out.room(1) {
			e.queueMessage(d.to, KindDisconnect, d.token)
			d.left--
		}
	}
	e.disconnects = slices.DeleteFunc(e.disconnects, func(d pendingDisconnect) bool { return d.left == 0 })
}

// Reason says why a connection ended, numbered as Unity's packages do. The
// wire carries none: each side gives its own.
type Reason uint8

// The reasons of this layer. A session layer above has further ones.
const (
	ReasonTimeout               Reason = 1 // nothing was received for too long
	ReasonMaxConnectionAttempts Reason = 2 // requests stayed without an answer
	ReasonClosedByRemote        Reason = 3 // the peer sent a disconnect
	ReasonProtocolError         Reason = 7 // the two ends do not fit, or the link reported the peer as gone
)

// String returns the name of the reason, or reason(n).
func (r Reason) String() string { return nameOf(reasonNames, "reason", uint8(r)) }

var reasonNames = []string{
	ReasonTimeout: "Timeout", ReasonMaxConnectionAttempts: "MaxConnectionAttempts",
	ReasonClosedByRemote: "ClosedByRemote", ReasonProtocolError: "ProtocolError",
}
