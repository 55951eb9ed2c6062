package engine

import (
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// Hooks are called by the control goroutine when something has changed, with
// no lock held. All are optional. They must not block: while one runs, nobody
// can bind. There is no hook per relayed datagram; [Stats] is for that.
type Hooks struct {
	OnBind       func(BindEvent)
	OnConnect    func(ConnectEvent)
	OnDisconnect func(DisconnectEvent)
	OnEnd        func(EndEvent)
	OnReturn     func(ReturnEvent)
	// OnLargeMessage is called once per match.
	OnLargeMessage func(LargeMessageEvent)
}

// BindEvent: an allocation was bound to an endpoint, for the first time or
// after its player roamed.
type BindEvent struct {
	ID    proto.AllocationID
	Role  alloc.Role
	From  netip.AddrPort
	First bool
}

// ConnectEvent: a link was opened.
type ConnectEvent struct{ Host, Joiner proto.AllocationID }

// DisconnectEvent: From closed its link with To.
type DisconnectEvent struct{ From, To proto.AllocationID }

// ReturnEvent: a host of the run before came back.
type ReturnEvent struct {
	ID             proto.AllocationID
	Tenant         uint64 // alloc.Tenant.Hash
	MaxConnections int
}

// LargeMessageEvent: a message is larger than what every client takes by the
// receiver's way. It is the first one of its match.
type LargeMessageEvent struct {
	Match            proto.AllocationID // id of the host
	From, To         proto.AllocationID
	FromKind, ToKind endpoint.Kind
	// Size of the message, and Limit that it exceeds, in bytes with all headers
	// of the relay protocol, without those of the way.
	Size, Limit int
	// Dropped: it was not forwarded, as all such messages from now on. Else it
	// was, and the receiver's client may drop it.
	Dropped bool
}

// EndEvent: an allocation ended, and its links with it.
type EndEvent struct {
	ID     proto.AllocationID
	Role   alloc.Role
	Reason EndReason
}

// EndReason says why an allocation ended.
type EndReason uint8

const (
	// EndExpired: nobody bound it in time, or it was silent for too long.
	EndExpired EndReason = iota
	// EndClosed: its owner sent CLOSE.
	EndClosed
	// EndLost: it was there before a restart and did not come back in time.
	EndLost
	// EndOperator: closed by the operator, or a reservation that was cancelled.
	EndOperator
)

// String returns "expired", "closed", "lost" or "closed by the operator".
func (r EndReason) String() string {
	switch r {
	case EndClosed:
		return "closed"
	case EndLost:
		return "lost"
	case EndOperator:
		return "closed by the operator"
	}
	return "expired"
}
