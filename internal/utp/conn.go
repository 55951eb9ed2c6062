package utp

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utpwire"
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

// conn is one connection. Times are in ms of the endpoint's clock.
type conn struct {
	id       ConnID
	state    State
	incoming bool
	token    utpwire.Token
	addr     address.Addr

	opened       int64
	lastReceived int64 // last valid message
	sent         int64 // last datagram
	lastRequest  int64 // last request
	attempts     int   // requests sent
	payload      []byte

	acceptDue bool // a request is to be answered
	waiting   bool // in the endpoint's list of half-open connections
	halfOpen  int  // index in that list
	validated bool // the peer has proven its address, or this side chose it
	budget    int  // bytes that may still be sent to an unvalidated peer

	// Of a client with ValidateAddresses:
	hasCookie  bool // payload begins with the server's cookie
	confirmed  bool // the server has sent a message other than accepts
	requestDue bool // the cookie is to be returned

	pipelines []pipelineState
	stats     Stats
}

// conn returns a live connection, or nil.
func (e *Endpoint) conn(id ConnID) *conn {
	if int64(id.slot) >= int64(len(e.conns)) {
		return nil
	}
	c := e.conns[id.slot]
	if c.id != id || c.state == StateNone {
		return nil
	}
	return c
}

// newConn puts a connection into the table, in a slot that is free.
func (e *Endpoint) newConn(token utpwire.Token, to address.Addr, s State) *conn {
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
		id: id, state: s, token: token, addr: to, pipelines: c.pipelines, payload: c.payload[:0],
		opened: e.now, lastReceived: e.now, sent: e.now,
		stats: Stats{RTT: 50 * time.Millisecond, RTTVariation: 5 * time.Millisecond},
	}
	e.resetPipelines(c.pipelines)
	e.tokens[token] = c
	e.live++
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
	e.live--
}

// end drops a connection and queues the event with its reason.
func (e *Endpoint) end(c *conn, r Reason, cause error) {
	e.drop(c)
	e.events.push(Event{Kind: EventDisconnected, Conn: c.id, Reason: r, Cause: cause}, nil)
}

// Connect begins to ask for a connection; the first request leaves with the
// next Flush. EventConnected or EventDisconnected tells what came of it. The
// payload goes with every request, to servers of UTP 2.2 and later.
//
// Errors: ErrAddr, ErrTooLarge, ErrFull, and those of Config.Rand.
func (e *Endpoint) Connect(to address.Addr, payload []byte) (ConnID, error) {
	if ap, udp := to.UDP(); !to.IsValid() || udp && ap.Port() == 0 {
		return ConnID{}, ErrAddr
	}
	prefix := 0
	if e.cfg.ValidateAddresses {
		prefix = cookieLen
	}
	if utpwire.HandshakeLen+utpwire.LengthLen+prefix+len(payload) > e.cfg.room() {
		return ConnID{}, ErrTooLarge
	}
	if e.live >= e.cfg.MaxConnections {
		return ConnID{}, ErrFull
	}
	token, err := e.newToken()
	if err != nil {
		return ConnID{}, err
	}
	c := e.newConn(token, to, StateConnecting)
	c.validated = true
	c.payload = append(append(c.payload, make([]byte, prefix)...), payload...)
	return c.id, nil
}

// newToken returns a token that no connection here has.
func (e *Endpoint) newToken() (utpwire.Token, error) {
	for range 8 { // A good source needs one try, one that repeats itself never ends.
		var b [utpwire.TokenLen]byte
		if _, err := io.ReadFull(e.cfg.Rand, b[:]); err != nil {
			return 0, fmt.Errorf("utp: no random token: %w", err)
		}
		token := utpwire.Token(binary.LittleEndian.Uint64(b[:]))
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
	if c == nil || c.state != StateConnecting {
		return
	}
	if c.attempts > 0 && c.attempts < e.cfg.ConnectAttempts {
		c.lastRequest = e.now - e.times.connect - 1
	}
}

// DropPeer ends the connections with a peer that the link reports as gone, as a
// relay does by DISCONNECT. Every connection with this address ends with ReasonProtocolError,
// as Unity reports it, and with the Cause ErrPeerGone. It returns their number.
func (e *Endpoint) DropPeer(at address.Addr) int {
	n := 0
	for _, c := range e.conns {
		if c.state != StateNone && c.addr == at {
			e.end(c, ReasonProtocolError, ErrPeerGone)
			n++
		}
	}
	return n
}

// rateLimiter is a token bucket for answers to clients without a connection.
type rateLimiter struct {
	rate int64 // per second, and the capacity of the bucket
	have int64 // thousandths of a token
}

func newRateLimiter(rate int) rateLimiter {
	return rateLimiter{rate: int64(rate), have: int64(rate) * 1000}
}

// refill adds the tokens of ms milliseconds.
func (b *rateLimiter) refill(ms int64) {
	full := b.rate * 1000
	// More than a second fills it whatever was in it.
	b.have = min(b.have+min(ms, 1000)*b.rate, full)
}

// allow takes one token and reports whether there was one.
func (b *rateLimiter) allow() bool {
	if b.have < 1000 {
		return false
	}
	b.have -= 1000
	return true
}

// request processes a connection request.
func (e *Endpoint) request(from address.Addr, pkt []byte) outcome {
	m, err := utpwire.ParseRequest(pkt)
	if err != nil {
		return outcomeOf(err)
	}
	payload, proven := m.Payload, false
	if e.cfg.ValidateAddresses {
		payload, proven = e.cookies.verify(from, m, e.now)
	}
	if c := e.tokens[m.Token]; c != nil {
		return e.requestAgain(c, from, len(pkt), proven)
	}
	if !e.listening {
		e.refuse(from, m.Token, true)
		return dropListening
	}
	if e.closed.has(m.Token) {
		return dropClosed
	}
	if e.events.full() {
		return dropQueue
	}
	if o := e.makeRoom(from); o != taken {
		if o == dropFull || o == dropHalfOpen {
			e.refuse(from, m.Token, false)
		}
		return o
	}
	if e.cfg.ValidateAddresses && !proven {
		return e.sendCookie(from, m.Token)
	}
	c := e.newConn(m.Token, from, StateHalfOpen)
	c.incoming, c.validated, c.acceptDue = true, proven, !proven
	if proven {
		c.state = StateEstablished
	}
	c.credit(len(pkt))
	e.enterHalfOpen(c)
	e.events.push(Event{Kind: EventIncoming, Conn: c.id}, payload)
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
	c.lastReceived = e.now
	c.credit(size)
	if e.cfg.ValidateAddresses {
		c.validated = c.validated || proven
		return taken
	}
	c.acceptDue = true
	return taken
}

// refuse answers a request statelessly with a disconnect, which ends the
// client's attempt. A side that does not listen sends an accept first, as UTP does.
func (e *Endpoint) refuse(to address.Addr, token utpwire.Token, acceptFirst bool) {
	if !e.out.room(2) || !e.refusals.allow() {
		return
	}
	e.stats.Refused++
	if acceptFirst {
		e.queue(to, utpwire.Accept{Token: token}.Append(e.out.open()))
	}
	e.emitDisconnect(to, token)
}

// accept takes the answer to a request of this side. Servers repeat it.
func (e *Endpoint) accept(c *conn, from address.Addr, pkt []byte) outcome {
	m, err := utpwire.ParseAccept(pkt)
	if err != nil {
		return outcomeOf(err)
	}
	isCookie := e.cfg.ValidateAddresses && !c.incoming && len(m.Payload) == cookieLen
	if c.state != StateConnecting && !isCookie {
		return dropState
	}
	if from != c.addr {
		return dropForeign
	}
	c.lastReceived = e.now
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(len(pkt))
	if isCookie {
		c.takeCookie(m.Payload)
		m.Payload = nil
	}
	if c.state == StateConnecting {
		e.connected(c, m.Payload)
	}
	return taken
}

// pendingDisconnect is a disconnect that is repeated, since it is not acknowledged.
type pendingDisconnect struct {
	to    address.Addr
	token utpwire.Token
	left  int // copies to send
}

// disconnectCopies is in how many flushes a disconnect leaves. Unity sends one;
// it drops the others as of an unknown token.
const disconnectCopies = 3

// closedTokens is how many tokens of closed connections are remembered. A
// client takes a new token for a new connection, so a request with one of
// these is a late copy.
const closedTokens = 256

// tokenRing is a ring buffer of tokens.
type tokenRing struct {
	tokens []utpwire.Token
	next   int
}

func (g *tokenRing) add(t utpwire.Token) {
	if len(g.tokens) < closedTokens {
		g.tokens = append(g.tokens, t)
		return
	}
	g.tokens[g.next] = t
	g.next = (g.next + 1) % closedTokens
}

func (g *tokenRing) has(t utpwire.Token) bool {
	for _, closed := range g.tokens {
		if closed == t {
			return true
		}
	}
	return false
}

// queueDisconnect begins to send disconnects. They leave in Flush, behind the data
// that was sent before. Peers beyond the
// limit of the list run into their timeout.
func (e *Endpoint) queueDisconnect(c *conn) {
	if c.incoming {
		e.closed.add(c.token)
	}
	copies := disconnectCopies
	if !c.validated {
		copies = min(copies, c.budget/utpwire.MessageLen)
	}
	if copies > 0 && len(e.disconnects) < disconnectCopies*e.cfg.MaxConnections {
		e.disconnects = append(e.disconnects, pendingDisconnect{to: c.addr, token: c.token, left: copies})
	}
}

func (e *Endpoint) flushDisconnects() {
	kept := e.disconnects[:0]
	for _, f := range e.disconnects {
		if e.out.room(1) {
			e.emitDisconnect(f.to, f.token)
			f.left--
		}
		if f.left > 0 {
			kept = append(kept, f)
		}
	}
	e.disconnects = kept
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
