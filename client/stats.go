package client

import (
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

const errorCodes = int(proto.ErrorSelfConnect) + 1

// Stats is what a session has counted since New. Sent and received datagrams
// and bytes are contents of RELAY, without its 38 bytes of header.
type Stats struct {
	Sent, SentBytes         uint64
	Received, ReceivedBytes uint64

	Unsent       uint64 // datagrams of any kind that the system refused to send
	QueueDropped uint64 // received, but the peer's queue was full
	Foreign      uint64 // came from another address than the relay's
	Malformed    uint64 // from the relay, but no message of the protocol
	Unexpected   uint64 // a message that nothing here waits for
	LatePeers    uint64 // RELAY of a peer that this side has just disconnected
	PeersRefused uint64 // RELAY of a new peer when MaxPeers were reached
	PeersEvicted uint64 // silent peers that made room

	Rebinds uint64 // times that the session bound again: silence, ERROR 3, Roam
	Pings   uint64 // PINGs sent
	Echoes  uint64 // PINGs that came back

	Errors      [errorCodes]uint64 // ERRORs received, by code
	OtherErrors uint64             // ERRORs of an unknown code or about another allocation

	Bound bool          // the relay has confirmed the present endpoint
	Nonce uint16        // of the newest BIND
	Peers int           // in the table now
	RTT   time.Duration // to the relay and back, smoothed; 0 before the first echo
}

// counters are the parts of Stats that several goroutines write.
type counters struct {
	sent, sentBytes, received, receivedBytes atomic.Uint64
	queueDropped, foreign, malformed         atomic.Uint64
	unexpected, late, refused, evicted       atomic.Uint64
	rebinds, pings, echoes, other            atomic.Uint64
	errors                                   [errorCodes]atomic.Uint64
}

// Stats returns the counters and the state of the session.
func (s *Session) Stats() Stats {
	c := &s.counters
	st := Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Unsent: s.transport.unsent.Load(), QueueDropped: c.queueDropped.Load(),
		Foreign: c.foreign.Load(), Malformed: c.malformed.Load(),
		Unexpected: c.unexpected.Load(), LatePeers: c.late.Load(),
		PeersRefused: c.refused.Load(), PeersEvicted: c.evicted.Load(),
		Rebinds: c.rebinds.Load(), Pings: c.pings.Load(), Echoes: c.echoes.Load(),
		OtherErrors: c.other.Load(),
	}
	for i := range st.Errors {
		st.Errors[i] = c.errors[i].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Bound = s.bind.bound.Load() && !s.bind.active
	st.Nonce = s.bind.last
	st.Peers = len(s.peers.byID)
	st.RTT = s.ping.smoothed
	return st
}
