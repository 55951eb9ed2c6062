package netcode

import (
	"iter"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// Conn names one connection of a driver. It is comparable and is never used
// again for another one; its zero is none. Its methods belong to the goroutine
// of the driver and may be called at any time: those of a connection that has
// ended return ErrGone or nothing.
type Conn struct {
	d  *Driver
	id utp.ConnID
}

// IsZero reports whether c names no connection.
func (c Conn) IsZero() bool { return c.d == nil }

// live returns the session of a connection that has not ended, or nil.
func (c Conn) live() *session {
	if s := c.d.session(c.id); s != nil && s.live() {
		return s
	}
	return nil
}

// State returns where the connection stands: StateUnknown for the zero Conn.
func (c Conn) State() State {
	if c.IsZero() {
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

// Approve lets a client in; it is connected with the next Update. During the
// handshake it counts for later; a second time it does nothing.
//
// Errors: ErrGone, ErrNotServer, ErrApprovalNotRequired, and ErrNotAllowedInState
// if Disconnect was called before.
func (c Conn) Approve() error {
	s := c.live()
	switch {
	case s == nil:
		return ErrGone
	case !c.d.server:
		return ErrNotServer
	case !c.d.cfg.RequireApproval:
		return ErrApprovalNotRequired
	case s.closing:
		return ErrNotAllowedInState
	}
	s.approved = true
	return nil
}

// Disconnect ends the connection with the next Update, whose event has this
// reason. The peer's event has ReasonClosedByRemote, and reason and text as
// Remote if both sides use notices. Of several calls the first counts.
func (c Conn) Disconnect(r DisconnectReason, text string) {
	if s := c.live(); s != nil && !s.closing {
		s.closing, s.closeReason, s.closeText = true, r, cut(text)
	}
}

// SetInGame says whether commands and snapshots pass on this side; both sides
// must say so. Leaving forgets what was acknowledged.
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

// SendRPC queues an RPC, which arrives once and in order.
//
// Errors: ErrGone, ErrUnknownRPC, ErrNotAllowedInState, ErrTooLarge, ErrQueueFull.
func (c Conn) SendRPC(r RPC) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	return c.d.sendRPC(s, r)
}

// RPCs returns those that were received in the last Update.
func (c Conn) RPCs() iter.Seq[RPC] {
	return func(yield func(RPC) bool) {
		s := c.live()
		if s == nil {
			return
		}
		for _, r := range s.rpcs {
			if !yield(r) {
				return
			}
		}
	}
}

// SendCommand sends a command to the server with the next Flush; of several in
// one tick only the last leaves. It may be lost.
//
// Errors: ErrGone, ErrNotClient, ErrNotAllowedInState, ErrTooLarge.
func (c Conn) SendCommand(tick uint32, b []byte) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	if c.d.server {
		return ErrNotClient
	}
	return c.d.sendStream(s, commandLen, tick, b)
}

// Command returns the client's command with the newest tick, if one came in the
// last Update. It is valid until the next.
func (c Conn) Command() (tick uint32, b []byte, ok bool) { return c.newest(true) }

// SendSnapshot sends a snapshot to a client with the next Flush; of several in
// one tick only the last leaves. It may be lost, see Acks.
//
// Errors: ErrGone, ErrNotServer, ErrNotAllowedInState, ErrTooLarge.
func (c Conn) SendSnapshot(tick uint32, b []byte) error {
	s := c.live()
	if s == nil {
		return ErrGone
	}
	if !c.d.server {
		return ErrNotServer
	}
	return c.d.sendStream(s, snapshotLen, tick, b)
}

// Snapshot returns the server's snapshot with the newest tick, if one came in
// the last Update. It is valid until the next.
func (c Conn) Snapshot() (tick uint32, b []byte, ok bool) { return c.newest(false) }

func (c Conn) newest(server bool) (tick uint32, b []byte, ok bool) {
	s := c.live()
	if s == nil || !s.in.fresh || c.d.server != server {
		return 0, nil, false
	}
	return s.in.tick, s.in.body, true
}

// Acks returns which snapshots the client has processed: on the server as its
// newest command said.
func (c Conn) Acks() Acks {
	switch s := c.live(); {
	case s == nil:
		return Acks{}
	case c.d.server:
		return s.acked
	default:
		return s.acks
	}
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
