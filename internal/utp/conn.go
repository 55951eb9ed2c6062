package utp

import (
	"fmt"
	"time"
)

// State is where a connection stands.
type State uint8

const (
	// StateNone: the connection has ended or never was.
	StateNone State = iota
	// StateConnecting: this side sent a request and has no answer yet.
	StateConnecting
	// StateHalfOpen: the other side sent a request and nothing since.
	StateHalfOpen
	// StateEstablished: both sides have received a message of the other.
	StateEstablished
)

// String returns the name of the state, or state(n).
func (s State) String() string { return nameOf(stateNames, "state", uint8(s)) }

var stateNames = []string{"none", "connecting", "half-open", "established"}

func nameOf(names []string, kind string, n uint8) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", kind, n)
}

// conn is one connection. Times are of the endpoint's clock.
type conn struct {
	ep       *Endpoint
	id       ConnID
	state    State
	incoming bool
	token    Token
	path     path

	opened       time.Duration
	lastReceived time.Duration // last valid message
	resumed      time.Duration // when the peer was heard again after a silence
	sent         time.Duration // last datagram
	lastRequest  time.Duration // last request
	attempts     int           // requests sent

	acceptDue bool // a request is to be answered
	waiting   bool // in the endpoint's list of half-open connections
	cookie    clientCookie

	pipelines []pipelineState
	stats     Stats
}

func newConn(e *Endpoint, token Token, to path, s State) *conn {
	c := e.conns.add(token)
	if c.pipelines == nil {
		c.pipelines = newPipelineStates(e.layouts, e.cfg.Window)
	}
	*c = conn{
		ep: e, id: c.id, state: s, token: token, path: to, pipelines: c.pipelines, cookie: clientCookie{value: c.cookie.value[:0]},
		opened: e.now, lastReceived: e.now, sent: e.now,
		stats: Stats{RTT: 50 * time.Millisecond, RTTVariation: 5 * time.Millisecond},
	}
	return c
}

func (c *conn) drop() {
	c.ep.halfOpen.remove(c)
	resetPipelines(c.pipelines, &c.ep.pool)
	c.ep.conns.remove(c)
}

// end drops a connection and queues the event, which has its reason.
func (c *conn) end(ev Event) {
	c.drop()
	ev.Kind = EventDisconnected
	c.push(ev, nil)
}

func (c *conn) push(ev Event, data []byte) {
	ev.Conn = c.id
	c.ep.events.close(ev, append(c.ep.events.buf, data...))
}

func (c *conn) expired() Reason {
	switch cfg, now := &c.ep.cfg, c.ep.now; {
	case c.state == StateConnecting && c.attempts >= cfg.ConnectAttempts && now-c.lastRequest > cfg.ConnectTimeout:
		return ReasonMaxConnectionAttempts
	case c.state == StateHalfOpen && now-c.opened > halfOpenLife,
		c.state == StateEstablished && cfg.DisconnectTimeout != NoTimeout && now-c.lastReceived > cfg.DisconnectTimeout:
		return ReasonTimeout
	}
	return 0
}

func (c *conn) inFlight() (n int) {
	for i := range c.pipelines {
		if r := c.pipelines[i].reliable; r != nil {
			n += r.sender.count
		}
	}
	return n
}
