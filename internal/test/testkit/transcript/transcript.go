// Package transcript hashes what a link carries, for tests of determinism.
package transcript

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// Tap is a link that hashes all that passes through it, and when: two runs with
// the same Sum had the same transcript. In front of a link.Simulation it hashes
// what the game sends and receives, behind it what the network carries. It belongs to the
// goroutine of the link below, which it owns.
type Tap struct {
	link.Link
	hash  hash.Hash
	start time.Time
	lines uint64
	buf   []byte
}

// NewTap puts a tap in front of a link.
func NewTap(inner link.Link) *Tap {
	return &Tap{Link: inner, hash: sha256.New(), buf: make([]byte, 0, 128)}
}

// Sum returns the hash of the transcript so far.
func (t *Tap) Sum() [sha256.Size]byte { return [sha256.Size]byte(t.hash.Sum(nil)) }

// Len returns how many calls the transcript has that did something.
func (t *Tap) Len() uint64 { return t.lines }

// Advance notes the time since the first Advance.
func (t *Tap) Advance(now time.Time) {
	if t.start.IsZero() {
		t.start = now
	}
	t.note('A', link.Event{}, uint64(now.Sub(t.start)), nil)
	t.Link.Advance(now)
}

// Receive notes what is received, with Err as its text.
func (t *Tap) Receive(b []byte) link.Event {
	e := t.Link.Receive(b)
	switch {
	case e.Kind == link.Datagram:
		t.note('R', e, 0, b[:e.N])
	case e.Kind != link.Nothing:
		t.note('R', e, 0, errorText(e.Err))
	}
	return e
}

// Send notes what is sent, and whether that failed.
func (t *Tap) Send(to address.Addr, b []byte) error {
	err := t.Link.Send(to, b)
	var failed uint64
	if err != nil {
		failed = 1
	}
	t.note('S', link.Event{Kind: link.Datagram, Addr: to}, failed, b)
	return err
}

// Disconnect adds the peer that is disconnected to the hash.
func (t *Tap) Disconnect(peer address.Addr) {
	t.note('D', link.Event{Kind: link.Left, Addr: peer}, 0, nil)
	t.Link.Disconnect(peer)
}

// note adds a line: call, kind, number, lengths, address and bytes.
func (t *Tap) note(call byte, e link.Event, number uint64, b []byte) {
	t.lines++
	line := append(t.buf[:0], call, byte(e.Kind), 0)
	line = binary.BigEndian.AppendUint64(line, number)
	line = binary.BigEndian.AppendUint32(line, uint32(len(b)))
	line = append(line, e.Addr.String()...)
	line[2] = byte(len(line))
	t.hash.Write(line)
	t.hash.Write(b)
	t.buf = line
}

func errorText(err error) []byte {
	if err == nil {
		return nil
	}
	return []byte(err.Error())
}
