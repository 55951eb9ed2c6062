package utp

import (
	"slices"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Disconnect ends a connection from this side; no event follows. The next three flushes
// send the peer a disconnect. It does nothing to a connection that has ended.
func (e *Endpoint) Disconnect(id ConnID) {
	c := e.conns.find(id)
	if c == nil {
		return
	}
	c.drop()
	if c.attempts > 0 || c.incoming {
		c.queueDisconnect()
	}
}

// DropPeer ends the connections with a peer that the link reports as gone, as a relay does by
// DISCONNECT, with ReasonProtocolError and the cause.
func (e *Endpoint) DropPeer(at address.Addr, cause error) {
	if cause == nil {
		cause = ErrPeerGone
	}
	for _, c := range e.conns.slots {
		if c.state != StateNone && c.path.addr == at {
			c.end(Event{Reason: ReasonProtocolError, Cause: cause})
		}
	}
}

type closing struct {
	disconnects []pendingDisconnect
	tokens      []Token // the last that were closed, oldest first
}

type pendingDisconnect struct {
	to    address.Addr
	token Token
	left  int // copies to send
}

// disconnectCopies is in how many flushes a disconnect leaves. Unity sends one;
// it drops the others as of an unknown token.
const disconnectCopies = 3

// closedTokens is how many tokens of closed connections are remembered, since a
// request with one of these is a late copy.
const closedTokens = 256

func (cl *closing) remember(t Token) {
	if len(cl.tokens) == closedTokens {
		cl.tokens = slices.Delete(cl.tokens, 0, 1)
	}
	cl.tokens = append(cl.tokens, t)
}

func (cl *closing) flush(out *output) {
	for i := range cl.disconnects {
		if d := &cl.disconnects[i]; out.room(1) {
			out.sendPacket(d.to, Packet{Kind: KindDisconnect, Token: d.token})
			d.left--
		}
	}
	cl.disconnects = slices.DeleteFunc(cl.disconnects, func(d pendingDisconnect) bool { return d.left == 0 })
}

// queueDisconnect leaves peers beyond the limit of the list to their timeout.
func (c *conn) queueDisconnect() {
	cl := &c.ep.closing
	if c.incoming {
		cl.remember(c.token)
	}
	copies := disconnectCopies
	if !c.path.validated {
		copies = min(copies, c.path.budget/messageLen)
	}
	if copies > 0 && len(cl.disconnects) < disconnectCopies*c.ep.cfg.MaxConnections {
		cl.disconnects = append(cl.disconnects, pendingDisconnect{to: c.path.addr, token: c.token, left: copies})
	}
}

// Reason says why a connection ended. The wire carries none.
type Reason uint8

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
