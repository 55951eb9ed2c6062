package client

import (
	"errors"
	"fmt"
	"net"

	"github.com/ferryrelay/ferry/proto"
)

// The errors of this package that carry nothing but their name. A session or a
// peer that was closed on this side answers with net.ErrClosed, a deadline that
// passed is os.ErrDeadlineExceeded, and a peer that left is io.EOF on Read.
var (
	// ErrConfig is wrapped by every refusal of a Config or Ticket.
	ErrConfig = errors.New("client: configuration is not usable")
	// ErrBindTimeout ends a session whose BIND stays without an answer.
	ErrBindTimeout = errors.New("client: relay does not answer BIND")
	// ErrInUse ends a session that loses its endpoint to another one with the same
	// allocation, such as a copy of the game, at least three times in 30 s.
	ErrInUse = errors.New("client: another session uses this allocation")
	// ErrNotBound is a datagram written before the relay first confirmed the BIND.
	ErrNotBound = errors.New("client: session is not bound yet")
	// ErrTooLarge is a datagram above Config.MaxContent; nothing was sent.
	ErrTooLarge = errors.New("client: datagram is larger than the content limit")
	// ErrRole is Connect on a host or Accept on a joiner.
	ErrRole = errors.New("client: call belongs to the other role")
	// ErrConnectTimeout is Connect without any verdict of the relay.
	ErrConnectTimeout = errors.New("client: relay does not answer CONNECT_REQUEST")
	// ErrRejected is Connect to a host that has all the players it may have.
	ErrRejected = errors.New("client: host is full")
	// ErrPeerLeft is Write to a peer that ended the link, or made room for
	// another.
	ErrPeerLeft = errors.New("client: peer has left")
	// ErrLinkLost is wrapped, beside its reason, by Read and Write of a host whose link the relay
	// has dropped and did not make again. Connect starts anew.
	ErrLinkLost = errors.New("client: link to the host is lost")
)

// Errors of wrong calls, and of a session that has no way on: programs do not tell them apart.
var (
	// errRunning is Run called a second time.
	errRunning = errors.New("client: session was run before")
	// errNotRunning is Bind or Connect of a session without a Run.
	errNotRunning = errors.New("client: session does not run: call Run in a goroutine")
	// errNonceExhausted ends a session that needs a nonce above 65535: nonces
	// never wrap, since the relay would ignore the BIND.
	errNonceExhausted = errors.New("client: no greater nonce is left")
	// errAddr is WriteTo with an address that is not an Addr.
	errAddr = errors.New("client: address is not an allocation")
	// errConnecting is Connect while another Connect waits.
	errConnecting = errors.New("client: a Connect is under way")
)

// EndedError is an error of the relay about the session's own allocation: ERROR 1, it timed out,
// or ERROR 4, it does not exist. To errors.Is it is also net.ErrClosed.
type EndedError struct {
	Code proto.ErrorCode
}

// Error names the relay's error code.
func (e EndedError) Error() string {
	return fmt.Sprintf("client: allocation has ended: %v (ERROR %d)", e.Code, uint8(e.Code))
}

// Is reports whether target is net.ErrClosed.
func (EndedError) Is(target error) bool { return target == net.ErrClosed }

// RefusedError is Connect refused for good: ERROR 2, the ticket is not for this
// player, ERROR 4, the host's allocation has ended, or ERROR 6, it leads to the
// player's own allocation.
type RefusedError struct {
	Code proto.ErrorCode
}

// Error names the relay's error code.
func (e RefusedError) Error() string {
	return fmt.Sprintf("client: connection refused: %v (ERROR %d)", e.Code, uint8(e.Code))
}
