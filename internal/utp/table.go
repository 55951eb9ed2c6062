package utp

import (
	"encoding/binary"
	"fmt"
	"io"
)

// ConnID names a connection, never a later one. Its zero is none.
type ConnID struct {
	slot       uint32
	generation uint32 // from 1
}

// Index is a small number, from 0, which later connections use again.
func (id ConnID) Index() int { return int(id.slot) }

// String returns index and generation, as in 3.1.
func (id ConnID) String() string { return fmt.Sprintf("%d.%d", id.slot, id.generation) }

type connTable struct {
	slots  []*conn // those without a state are free
	free   []uint32
	tokens map[Token]*conn // looked up only: its order would not be the same twice
}

func (t *connTable) find(id ConnID) *conn {
	if int64(id.slot) < int64(len(t.slots)) {
		if c := t.slots[id.slot]; c.id == id && c.state != StateNone {
			return c
		}
	}
	return nil
}

// add returns the connection of a free slot, with a new id and otherwise as it was left.
func (t *connTable) add(token Token) *conn {
	var c *conn
	if n := len(t.free); n > 0 {
		c = t.slots[t.free[n-1]]
		t.free = t.free[:n-1]
	} else {
		c = &conn{id: ConnID{slot: uint32(len(t.slots))}}
		t.slots = append(t.slots, c)
	}
	c.id.generation = max(c.id.generation+1, 1)
	t.tokens[token] = c
	return c
}

func (t *connTable) remove(c *conn) {
	c.state = StateNone
	delete(t.tokens, c.token)
	t.free = append(t.free, c.id.slot)
}

func (t *connTable) newToken(rand io.Reader) (Token, error) {
	for range 8 { // A good source needs one try, one that repeats itself never ends.
		var b [tokenLen]byte
		if _, err := io.ReadFull(rand, b[:]); err != nil {
			return 0, fmt.Errorf("utp: no random token: %w", err)
		}
		token := Token(binary.LittleEndian.Uint64(b[:]))
		if t.tokens[token] == nil {
			return token, nil
		}
	}
	return 0, fmt.Errorf("%w: Rand repeats itself", ErrConfig)
}
