package netcode

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// session is what a driver knows of one connection. It belongs to the slot of
// the transport and is used again, with its buffers, by later connections.
type session struct {
	conn     utp.ConnID
	state    State
	id       NetworkID
	since    time.Duration // when the handshake began
	unsaid   bool          // StateConnecting was not published yet
	dials    int           // times that the attempt had to find its peer again
	heard    bool          // the peer's version came, and fits
	approved bool
	inGame   bool
	userData any

	closing     bool // the game wants it to end
	closeReason DisconnectReason
	closeText   string
	lingers     bool // ended, but the notice may still be on its way
	until       time.Duration
	at          address.Addr // where the peer was then

	queue rpcQueue
	rpcs  []RPC

	in       inbound
	out      outbound
	acks     Acks // of the client
	acked    Acks // as the server knows them
	age      int32
	sequence uint8 // of the last snapshot
	trip     roundTrip
	counts   streamCounts
}

// streamCounts is what a session has counted.
type streamCounts struct {
	RPCsSent, RPCsReceived uint64
	Sent, Received         uint64 // commands or snapshots
	Unsent                 uint64 // commands or snapshots for which the transport had no room
	Late                   uint64 // older than one that was received before
	Replaced               uint64 // newer ones came in the same tick
	Lost                   uint64 // snapshots that are missing in the sequence
	Ignored                uint64 // received while not in game, or on the wrong side
}

func (s *session) reset(id utp.ConnID, st State) {
	queue, rpcs, body := s.queue, s.rpcs, s.out.body
	queue.reset()
	clear(rpcs)
	*s = session{conn: id, state: st, queue: queue, rpcs: rpcs[:0]}
	s.out.body = body[:0]
}

// live reports whether the game still has this connection.
func (s *session) live() bool { return s.state > StateDisconnected }

// leaveGame forgets what is acknowledged, but not how long a round trip takes.
func (s *session) leaveGame() {
	s.in = inbound{}
	s.out.due = false
	s.acks, s.acked, s.age = Acks{}, Acks{}, 0
}

// handshaking reports whether the limit of handshake and approval counts.
func (s *session) handshaking() bool { return s.state == StateHandshake || s.state == StateApproval }
