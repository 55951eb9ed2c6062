package utp

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// Connect begins to ask for a connection; the first request leaves with the
// next Flush. EventConnected or EventDisconnected tells what came of it. The
// payload goes with every request, to servers of UTP 2.2 and later.
//
// Errors: ErrAddr, ErrTooLarge, ErrFull, and those of Config.Rand.
func (e *Endpoint) Connect(to address.Addr, payload []byte) (ConnID, error) {
	if !to.Reachable() {
		return ConnID{}, ErrAddr
	}
	if HandshakeLen+lengthLen+len(payload) > e.cfg.room() {
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
	c.payload = append(c.payload, payload...)
	e.stats.Outgoing++
	return c.id, nil
}

// newToken returns a token that no connection here has.
func (e *Endpoint) newToken() (Token, error) {
	for range 8 { // A good source needs one try, one that repeats itself never ends.
		var b [TokenLen]byte
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

// Disconnect ends a connection from this side; no event follows. The peer is
// told in the next three flushes, behind what was sent before. What the peer
// had not acknowledged is lost. It does nothing to a connection that has ended.
func (e *Endpoint) Disconnect(id ConnID) {
	c := e.conn(id)
	if c == nil {
		return
	}
	e.drop(c)
	if c.attempts > 0 || c.incoming {
		e.sayFarewell(c)
	}
}

// AskAgain makes an attempt ask with the next Flush, without waiting for its
// time, if it has asked before: who knows that its last request was lost says
// so. It still counts as one of ConnectAttempts.
func (e *Endpoint) AskAgain(id ConnID) {
	c := e.conn(id)
	if c == nil || c.state != StateConnecting {
		return
	}
	if c.attempts > 0 && c.attempts < e.cfg.ConnectAttempts {
		c.asked = e.now - e.times.connect - 1
	}
}

// Gone takes the link's word that nobody is at a place any more, as a relay
// gives it by DISCONNECT. Every connection there ends with ReasonProtocolError,
// as Unity reports it, and with the Cause ErrPeerGone. It returns how many did.
func (e *Endpoint) Gone(at address.Addr) int {
	n := 0
	for _, c := range e.conns {
		if c.state != StateNone && c.addr == at {
			e.end(c, ReasonProtocolError, ErrPeerGone)
			n++
		}
	}
	return n
}
