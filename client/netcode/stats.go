package netcode

import (
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// ConnStats is what a connection has counted. Commands and snapshots share
// counters: a client sends the former and receives the latter.
type ConnStats struct {
	Transport utp.ConnStats

	// RTT and RTTVariation are the smoothed round trip and its variation, as
	// commands and snapshots measure it, the wait of a tick included. 0 before.
	RTT, RTTVariation time.Duration
	// CommandAge is by how many ticks the server's last snapshot was ahead of
	// the client's newest command when it was sent. Known to clients.
	CommandAge int32

	RPCsSent, RPCsReceived uint64
	RPCsQueued             int    // bytes that wait for a packet
	Sent, Received         uint64 // commands or snapshots
	Unsent                 uint64 // dropped, since the transport had no room
	Late                   uint64 // received after a newer one
	Replaced               uint64 // received, but a newer one came in the same tick
	Lost                   uint64 // snapshots that are missing in the sequence; some may be late
	Ignored                uint64 // received while not in game, or malformed
}

// Stats returns the counters, and false when the connection has ended.
func (c Conn) Stats() (ConnStats, bool) {
	s := c.live()
	if s == nil {
		return ConnStats{}, false
	}
	t, _ := c.d.ep.ConnStats(c.id)
	millis := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	n := s.counts
	return ConnStats{
		Transport: t, RTT: millis(s.trip.rtt), RTTVariation: millis(s.trip.variation), CommandAge: s.age,
		RPCsSent: n.RPCsSent, RPCsReceived: n.RPCsReceived, RPCsQueued: s.queue.len(),
		Sent: n.Sent, Received: n.Received, Unsent: n.Unsent,
		Late: n.Late, Replaced: n.Replaced, Lost: n.Lost, Ignored: n.Ignored,
	}, true
}

// driverCounts is what a driver has counted.
type driverCounts struct {
	Refused uint64
	Stale   uint64
	Unsent  uint64
	NoLink  uint64
}

// Stats is what a driver has counted, and the layers below.
type Stats struct {
	Transport utp.Stats
	Link      link.Stats

	Refused     uint64 // clients above MaxHandshaking
	Stale       uint64 // clients that had left before they were seen
	Unsent      uint64 // datagrams that the link did not take
	NoLink      uint64 // times that the link missed a peer
	Handshaking int    // now
}

// Stats returns the counters.
func (d *Driver) Stats() Stats {
	n := d.counts
	st := Stats{Refused: n.Refused, Stale: n.Stale, Unsent: n.Unsent, NoLink: n.NoLink, Handshaking: d.handshaking}
	if d.ep != nil {
		st.Transport, st.Link = d.ep.Stats(), d.link.Stats()
	}
	return st
}
