package link

import "errors"

// The errors of this package. A closed link answers with net.ErrClosed, and a
// relay that ended a link with the error of its client.Session.
var (
	// ErrTooLarge is a datagram above MaxDatagram, or above what the relay takes.
	ErrTooLarge = errors.New("link: datagram is too large")
	// ErrAddr is an address that this link has no way to: of another kind or
	// family, port 0, or nowhere.
	ErrAddr = errors.New("link: address is not usable here")
	// ErrNoPeer is a datagram for a peer that has no connection of the transport.
	ErrNoPeer = errors.New("link: no such peer")
	// ErrTaken is an address of a network in memory that another node has.
	ErrTaken = errors.New("link: address is taken")
	// ErrReserved is a datagram that a Direct would take for a signal of its own: one that
	// begins with the bytes fe 64 69 72, which no packet of package utp does.
	ErrReserved = errors.New("link: datagram begins with reserved bytes")
)
