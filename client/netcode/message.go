package netcode

import (
	"iter"

	"github.com/ferryrelay/ferry/internal/utp"
)

// SendMessage sends a message of the game in a datagram of its own with the next Flush, from
// either side of a connected connection. It may be lost, arrive twice or after a later one.
// Over UDP with the default MaxMessageSize the limit is 1389 bytes, over a relay 38 less.
//
// Errors: ErrGone, ErrNotAllowed, ErrTooLarge, ErrQueueFull.
func (c Conn) SendMessage(b []byte) error {
	s := c.live()
	switch {
	case s == nil:
		return ErrGone
	case s.state != StateConnected:
		return ErrNotAllowed
	case 1+len(b) > c.d.ep.MaxPayload(utp.EntitiesUnreliable):
		return ErrTooLarge
	}
	c.d.scratch = append(append(c.d.scratch[:0], kindMessage), b...)
	if c.d.ep.Send(s.conn, utp.EntitiesUnreliable, c.d.scratch) != nil {
		return ErrQueueFull
	}
	s.counts.MessagesSent++
	return nil
}

// Messages returns the messages of the last Update, in the order of their arrival, until the
// next Update. More than 256 in one Update are dropped.
func (c Conn) Messages() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) { each(c.receivingSession().messages, yield) }
}

// maxMessages bounds the messages of one connection that an Update keeps.
const maxMessages = 256

func (s *session) takeMessage(b []byte) {
	if s.state != StateConnected {
		s.counts.Ignored++
		return
	}
	if len(s.messages) == maxMessages {
		s.counts.Dropped++
		return
	}
	s.counts.MessagesReceived++
	s.messages = append(s.messages, b)
}
