package netcode

import (
	"cmp"
	"slices"
)

// ConnectionEvent says that a connection has entered a state in this tick. A
// server has none for StateConnecting, and neither side one for StateUnknown
// or for Listen.
type ConnectionEvent struct {
	Conn      Conn
	NetworkID NetworkID // 0 before StateConnected, and after it if that never was
	State     State
	Reason    DisconnectReason // of StateDisconnected
	Remote    *CloseInfo       // what the peer said at the end, nil if it said nothing
	Cause     error            // of ReasonProtocolError: utp.ErrWindowMismatch, utp.ErrPeerGone or why the link ended
}

// CloseInfo is what a peer says when it ends a connection.
type CloseInfo struct {
	Reason DisconnectReason
	Text   string // at most MaxCloseText bytes, valid UTF-8
}

// MaxCloseText is the largest text of a CloseInfo in bytes. More is cut off.
const MaxCloseText = 127

// ConnectionEventsForTick returns the events of the last Update: first clients
// that were accepted, then what happened to each connection, in the order of
// the connections. It is valid until the next Update and reading it does not
// change it.
func (d *Driver) ConnectionEventsForTick() []ConnectionEvent { return d.events }

func (d *Driver) publish(ev ConnectionEvent) {
	d.events = append(d.events, ev)
	d.log.Debug("connection", "state", ev.State, "networkID", ev.NetworkID, "reason", ev.Reason)
}

// order puts the events into the order that ConnectionEventsForTick promises.
func (d *Driver) order() {
	rank := func(ev ConnectionEvent) int {
		if d.server && ev.State == StateHandshake {
			return -1
		}
		return ev.Conn.id.Index()
	}
	slices.SortStableFunc(d.events, func(a, b ConnectionEvent) int { return cmp.Compare(rank(a), rank(b)) })
}
