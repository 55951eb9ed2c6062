package websocket

import (
	"sync/atomic"

	ws "github.com/coder/websocket"
)

// Refusal is why a caller did not get a WebSocket.
type Refusal uint8

// The reasons of a refusal.
const (
	// RefusedPlain: no WebSocket was asked for: 426.
	RefusedPlain Refusal = iota
	// RefusedHandshake: the handshake breaks RFC 6455, or the server cannot
	// upgrade: 400, 405, 426 or 501.
	RefusedHandshake
	// RefusedOrigin: Config.AllowOrigins does not name the page: 403.
	RefusedOrigin
	// RefusedStopped: Run does not run: 503.
	RefusedStopped
	// RefusedTotal: Config.MaxConns are open: 503.
	RefusedTotal
	// RefusedAddress: Config.MaxConnsPerAddress are open: 429.
	RefusedAddress

	// NumRefusals is the number of refusals.
	NumRefusals
)

var refusalNames = [NumRefusals]string{
	RefusedPlain: "plain", RefusedHandshake: "handshake", RefusedOrigin: "origin",
	RefusedStopped: "stopped", RefusedTotal: "total", RefusedAddress: "address",
}

// String returns the name under which the refusal is counted.
func (r Refusal) String() string {
	if r < NumRefusals {
		return refusalNames[r]
	}
	return "unknown"
}

// Drop is why a message was dropped.
type Drop uint8

// The reasons of a drop.
const (
	// DropBusy: the relay had no room for a message that came in.
	DropBusy Drop = iota
	// DropUnproven: it came in, one of more than 64 before the relay had sent
	// anything but ERROR.
	DropUnproven
	// DropFull: it was to go out, and the connection's queue was full.
	DropFull
	// DropGone: it was to go out, and the connection had ended, or ended before
	// it was written.
	DropGone

	// NumDrops is the number of reasons.
	NumDrops
)

var dropNames = [NumDrops]string{
	DropBusy: "busy", DropUnproven: "unproven", DropFull: "full", DropGone: "gone",
}

// String returns the name under which the drop is counted.
func (d Drop) String() string {
	if d < NumDrops {
		return dropNames[d]
	}
	return "unknown"
}

// End is why a connection ended.
type End uint8

// The ends.
const (
	endNone End = iota // it has not
	// EndPeer: the client closed it.
	EndPeer
	// EndLost: the connection broke.
	EndLost
	// EndText: the client sent a text message: 1003.
	EndText
	// EndLarge: the client sent more than MaxMessage bytes: 1009.
	EndLarge
	// EndProtocol: the client broke RFC 6455: 1002.
	EndProtocol
	// EndLast: ERROR 1 or 4 was sent: 1000.
	EndLast
	// EndUnbound: nothing but ERROR was sent within Config.BindTimeout: 1008.
	EndUnbound
	// EndIdle: nothing was sent for Config.IdleTimeout: 1000.
	EndIdle
	// EndSlow: the client does not read as fast as it is sent to: a reset.
	EndSlow
	// EndPing: a ping was not answered: a reset.
	EndPing
	// EndStopped: Run's context ended: 1001.
	EndStopped

	// NumEnds is the number of ends, one that is not used included.
	NumEnds
)

// ends are the names under which ends are counted, and the status that goes to
// the client, or zero where nothing more can be said.
var ends = [NumEnds]struct {
	name   string
	status ws.StatusCode
	reason string
}{
	endNone:     {name: "none"},
	EndPeer:     {name: "peer"},
	EndLost:     {name: "lost"},
	EndText:     {"text", ws.StatusUnsupportedData, "binary messages only"},
	EndLarge:    {"large", ws.StatusMessageTooBig, "at most 1472 bytes"},
	EndProtocol: {"protocol", ws.StatusProtocolError, ""},
	EndLast:     {"last", ws.StatusNormalClosure, ""},
	EndUnbound:  {"unbound", ws.StatusPolicyViolation, "no BIND"},
	EndIdle:     {"idle", ws.StatusNormalClosure, "idle"},
	EndSlow:     {name: "slow"},
	EndPing:     {name: "ping"},
	EndStopped:  {"stopped", ws.StatusGoingAway, "the relay stops"},
}

// String returns the name under which the end is counted.
func (e End) String() string {
	if e < NumEnds {
		return ends[e].name
	}
	return "unknown"
}

// Stats are counts since the transport was made.
type Stats struct {
	// Open is how many connections there are now, Opened how many there were.
	Open   int
	Opened uint64
	// Received and ReceivedBytes count messages handed to the relay.
	Received, ReceivedBytes uint64
	// Sent and SentBytes count messages written, without their frames.
	Sent, SentBytes uint64
	// Pings counts pings that were sent.
	Pings uint64
	// Refused counts callers that got no WebSocket, by Refusal.
	Refused [NumRefusals]uint64
	// Dropped counts messages, by Drop.
	Dropped [NumDrops]uint64
	// Ended counts connections, by End.
	Ended [NumEnds]uint64
}

// counters are the counts behind [Stats].
type counters struct {
	opened                  atomic.Uint64
	received, receivedBytes atomic.Uint64
	sent, sentBytes         atomic.Uint64
	pings                   atomic.Uint64
	refused                 [NumRefusals]atomic.Uint64
	dropped                 [NumDrops]atomic.Uint64
	ended                   [NumEnds]atomic.Uint64
}

// Stats returns the counts. It may be called at any time.
func (t *Transport) Stats() Stats {
	c := &t.counts
	s := Stats{
		Open: t.door.inside(), Opened: c.opened.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), Pings: c.pings.Load(),
	}
	for i := range s.Refused {
		s.Refused[i] = c.refused[i].Load()
	}
	for i := range s.Dropped {
		s.Dropped[i] = c.dropped[i].Load()
	}
	for i := range s.Ended {
		s.Ended[i] = c.ended[i].Load()
	}
	return s
}
