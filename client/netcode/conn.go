package netcode

import (
	"iter"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utp"
)

// Conn names one connection of a driver. It is comparable and never used again;
// its zero is none. Its methods belong to the driver's goroutine: those of a
// connection that has ended return ErrGone or nothing.
type Conn struct {
	d  *Driver
	id utp.ConnID
}

func (c Conn) session() *session {
	if c.d == nil {
		return nil
	}
	return c.d.sessions.get(c.id)
}

func (c Conn) live() *session {
	if s := c.session(); s != nil && s.live() {
		return s
	}
	return nil
}

var noSession = new(session)

// receivingSession is also that of a connection that ended in the last Update, and never nil.
func (c Conn) receivingSession() *session {
	if s := c.session(); s != nil {
		return s
	}
	return noSession
}

// each is slices.Values, whose result the compiler would allocate.
func each[T any](list []T, yield func(T) bool) {
	for _, v := range list {
		if !yield(v) {
			return
		}
	}
}

// State returns where the connection stands: StateUnknown for the zero Conn.
func (c Conn) State() State {
	if c.d == nil {
		return StateUnknown
	}
	if s := c.live(); s != nil {
		return s.state
	}
	return StateDisconnected
}

// NetworkID returns the id, 0 unless the connection is connected.
func (c Conn) NetworkID() NetworkID {
	if s := c.live(); s != nil {
		return s.id
	}
	return 0
}

// Remote returns where the peer is now.
func (c Conn) Remote() (address.Addr, bool) {
	if c.live() == nil {
		return address.Addr{}, false
	}
	return c.d.ep.Remote(c.id)
}

// Approve makes a client connected with the next Update, or, during the handshake, when the
// handshake is complete. A second call does nothing.
//
// Errors: ErrGone, and ErrNotAllowed on a client, if Config.RequireApproval is not set or
// if Disconnect was called before.
func (c Conn) Approve() error {
	s := c.live()
	switch {
	case s == nil:
		return ErrGone
	case !c.d.server || !c.d.cfg.RequireApproval || s.closing.requested:
		return ErrNotAllowed
	}
	s.handshake.approved = true
	return nil
}

// Disconnect ends the connection with the next Update, whose event has this reason. The
// peer's event has ReasonClosedByRemote, and the reason and up to 127 bytes of the text.
// Of several calls the first counts.
func (c Conn) Disconnect(r Reason, text string) {
	if s := c.live(); s != nil && !s.closing.requested {
		s.closing.requested, s.closing.reason, s.closing.text = true, r, cut(text)
	}
}

// SetInGame turns commands and snapshots on or off on this side; they pass if both sides have
// turned them on. Turning them off resets the acknowledgements.
func (c Conn) SetInGame(on bool) {
	s := c.live()
	if s == nil {
		return
	}
	s.inGame = on
	if !on {
		s.leaveGame()
	}
}

// InGame returns what SetInGame has set.
func (c Conn) InGame() bool {
	s := c.live()
	return s != nil && s.inGame
}

// SendRPC queues an RPC, which arrives once and in order. A payload above one packet, over
// UDP by default 1369 bytes, travels in several, and the RPCs behind it wait for the last of
// them; it may have Limits.MaxRPCLen bytes, and must fit into Limits.MaxRPCQueue.
//
// Errors: ErrGone, ErrUnknownRPC, ErrNotAllowed, ErrTooLarge, ErrQueueFull.
func (c Conn) SendRPC(r RPC) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	return s.rpcs.send(r)
}

// RPCs returns those that were received in the last Update, also of a connection that ended
// in it. Conns does not return such a connection; its event has it.
func (c Conn) RPCs() iter.Seq[RPC] {
	return func(yield func(RPC) bool) { each(c.receivingSession().rpcs.received, yield) }
}

func (c Conn) maySend(byServer bool, header, size int) (*session, error) {
	s := c.live()
	switch {
	case s == nil:
		return nil, ErrGone
	case c.d.server != byServer || s.state != StateConnected || !s.inGame:
		return nil, ErrNotAllowed
	case size > c.d.cfg.Limits.MaxSnapshotLen,
		header+size > max(c.d.ep.MaxPayload(utp.EntitiesUnreliable), c.d.ep.MaxPayload(utp.EntitiesFragmented)):
		return nil, ErrTooLarge
	}
	return s, nil
}

// SetUserData keeps a value of the game until the connection ends.
func (c Conn) SetUserData(v any) {
	if s := c.live(); s != nil {
		s.userData = v
	}
}

// UserData returns that value.
func (c Conn) UserData() any {
	if s := c.live(); s != nil {
		return s.userData
	}
	return nil
}
