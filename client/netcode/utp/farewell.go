package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

// farewell is a disconnect that is repeated, since nobody acknowledges it.
type farewell struct {
	to    address.Addr
	token Token
	left  int // copies to send
}

// farewellCopies is in how many flushes a disconnect leaves. Unity sends one;
// it drops the others as of an unknown token.
const farewellCopies = 3

// closedTokens is how many tokens of closed connections are remembered. A
// client takes a new token for a new connection, so a request with one of
// these is a late copy.
const closedTokens = 256

// graveyard is a ring of those tokens.
type graveyard struct {
	tokens []Token
	next   int
}

func (g *graveyard) add(t Token) {
	if len(g.tokens) < closedTokens {
		g.tokens = append(g.tokens, t)
		return
	}
	g.tokens[g.next] = t
	g.next = (g.next + 1) % closedTokens
}

func (g *graveyard) has(t Token) bool {
	for _, closed := range g.tokens {
		if closed == t {
			return true
		}
	}
	return false
}

// sayFarewell begins to send disconnects. They leave in Flush, behind the data
// that was sent before. A crowd above MaxConnections is left to its timeouts.
func (e *Endpoint) sayFarewell(c *conn) {
	if c.incoming {
		e.closed.add(c.token)
	}
	if len(e.farewells) < farewellCopies*e.cfg.MaxConnections {
		e.farewells = append(e.farewells, farewell{to: c.addr, token: c.token, left: farewellCopies})
	}
}

func (e *Endpoint) flushFarewells() {
	kept := e.farewells[:0]
	for _, f := range e.farewells {
		if e.out.room(1) {
			e.emitDisconnect(f.to, f.token)
			f.left--
		}
		if f.left > 0 {
			kept = append(kept, f)
		}
	}
	e.farewells = kept
}
