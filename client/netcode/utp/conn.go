package utp

import (
	"fmt"
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

// IsZero reports whether id names no connection.
func (id ConnID) IsZero() bool { return id == ConnID{} }

// String returns index and generation, as in 3.1.
func (id ConnID) String() string { return fmt.Sprintf("%d.%d", id.slot, id.generation) }

// State is where a connection stands.
type State uint8

// The states.
const (
	// StateNone: the connection has ended or never was.
	StateNone State = iota
	// StateConnecting: this side asked and was not answered yet.
	StateConnecting
	// StateHalfOpen: the other side asked and was not heard since. Datagrams
	// may be sent already.
	StateHalfOpen
	// StateEstablished: both sides have heard each other.
	StateEstablished
)

// String returns the name of the state, or state(n).
func (s State) String() string {
	switch s {
	case StateNone:
		return "none"
	case StateConnecting:
		return "connecting"
	case StateHalfOpen:
		return "half-open"
	case StateEstablished:
		return "established"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// conn is one connection. Times are in ms of the endpoint's clock.
type conn struct {
	id       ConnID
	state    State
	incoming bool
	token    Token
	addr     address.Addr

	opened   int64
	heard    int64 // last valid message
	sent     int64 // last datagram
	asked    int64 // last request
	attempts int   // requests sent
	payload  []byte

	acceptDue bool // a request is to be answered
	credit    int  // data packets that may still go to a client that was not heard
	halfOpen  int  // index in the endpoint's list, if half-open

	lanes []lane
	stats ConnStats
}

// ConnStats is what a connection has counted. Bytes are those of whole
// datagrams, without the link's own.
type ConnStats struct {
	State  State
	Remote address.Addr
	Token  Token

	// RTT and RTTVariation are the smoothed round trip and its variation, of the
	// reliable pipeline that measured last; 50 ms and 5 ms before. ResendAfter
	// is the time after which it sends a packet again.
	RTT, RTTVariation, ResendAfter time.Duration

	Sent, SentBytes         uint64
	Received, ReceivedBytes uint64 // valid messages only

	Resent     uint64 // reliable packets sent again
	Duplicates uint64 // reliable packets received again
	Lost       uint64 // sequenced packets that were skipped; some may be late
	Late       uint64 // sequenced packets that came after a newer one
	Broken     uint64 // fragments dropped, since others of the message are missing
	Withheld   uint64 // data packets not sent to a client that was not heard
	Roams      uint64 // times that the peer's place changed
	InFlight   int    // reliable packets without an acknowledgement
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
func (e *Endpoint) newConn(token Token, to address.Addr, s State) *conn {
	var c *conn
	if n := len(e.free); n > 0 {
		c = e.conns[e.free[n-1]]
		e.free = e.free[:n-1]
	} else {
		c = &conn{id: ConnID{slot: uint32(len(e.conns))}, lanes: e.newLanes()}
		e.conns = append(e.conns, c)
	}
	id := ConnID{slot: c.id.slot, generation: c.id.generation + 1}
	if id.generation == 0 {
		id.generation = 1
	}
	*c = conn{
		id: id, state: s, token: token, addr: to, lanes: c.lanes, payload: c.payload[:0],
		opened: e.now, heard: e.now, sent: e.now,
		stats: ConnStats{RTT: 50 * time.Millisecond, RTTVariation: 5 * time.Millisecond, ResendAfter: startResendMS * time.Millisecond},
	}
	e.resetLanes(c.lanes)
	e.tokens[token] = c
	e.live++
	return c
}

// drop takes a connection out of the table without a word to anybody.
func (e *Endpoint) drop(c *conn) {
	if c.state == StateHalfOpen {
		e.leaveHalfOpen(c)
	}
	c.state = StateNone
	e.resetLanes(c.lanes)
	delete(e.tokens, c.token)
	e.free = append(e.free, c.id.slot)
	e.live--
}

// end drops a connection and tells the game why.
func (e *Endpoint) end(c *conn, r Reason, cause error) {
	e.drop(c)
	e.events.push(Event{Kind: EventDisconnected, Conn: c.id, Reason: r, Cause: cause}, nil)
}
