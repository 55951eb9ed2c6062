package netcode

import (
	"maps"
	"time"

	"github.com/ferryrelay/ferry/internal/utp"
)

// Stats is what a connection, or a driver with all its connections, has counted.
type Stats struct {
	// Datagrams, and their bytes without those of the link. A driver also counts those
	// without a connection.
	PacketsSent, PacketsReceived uint64
	BytesSent, BytesReceived     uint64

	Resent     uint64 // packets of RPCs sent again
	Duplicates uint64 // packets of RPCs received again

	RPCsSent, RPCsReceived         uint64
	RPCsQueued                     int    // bytes that wait for a packet
	MessagesSent, MessagesReceived uint64 // of SendMessage

	// Commands and snapshots share counters: a client sends the former.
	Sent, Received uint64
	Unsent         uint64 // those that were not sent, since there was no room
	Late           uint64 // commands with Late set; snapshots that came after a newer one
	Repeated       uint64 // commands that were received before, in another datagram
	// Dropped are commands that were 64 ticks too old, commands and messages above what an
	// Update keeps, and snapshots that a newer one of the same Update replaced.
	Dropped uint64
	Lost    uint64 // snapshots that are missing in the sequence; some may be late
	Ignored uint64 // received while not in game, or malformed
}

// ConnStats is the state of a connection, and what it has counted.
type ConnStats struct {
	Stats
	// RTT and RTTVariation are the smoothed round trip and its variation, the wait of a
	// tick included.
	RTT, RTTVariation time.Duration
	// CommandAge is by how many ticks the server's last snapshot was ahead of
	// the client's newest command when it was sent. Known to clients.
	CommandAge int32
}

// DriverStats is the state of a driver; that of its link is Driver.Link().Stats().
type DriverStats struct {
	Stats
	Connections int               // those of the transport now, with those in their last 250 ms
	Handshaking int               // of these, clients in handshake or approval
	Refused     uint64            // answers to clients for which there was no room
	Drops       map[string]uint64 // received datagrams that were dropped, by reason, without those that are 0
}

func (s *Stats) add(o *Stats) {
	s.RPCsSent += o.RPCsSent
	s.RPCsReceived += o.RPCsReceived
	s.MessagesSent += o.MessagesSent
	s.MessagesReceived += o.MessagesReceived
	s.Sent += o.Sent
	s.Received += o.Received
	s.Unsent += o.Unsent
	s.Late += o.Late
	s.Repeated += o.Repeated
	s.Dropped += o.Dropped
	s.Lost += o.Lost
	s.Ignored += o.Ignored
}

func (s *Stats) setTransport(t utp.Stats) {
	s.PacketsSent, s.BytesSent = t.Sent, t.SentBytes
	s.PacketsReceived, s.BytesReceived = t.Received, t.ReceivedBytes
	s.Resent, s.Duplicates = t.Resent, t.Duplicates
}

// Stats returns the counters, and false when the connection has ended.
func (c Conn) Stats() (ConnStats, bool) {
	s := c.live()
	if s == nil {
		return ConnStats{}, false
	}
	st := ConnStats{Stats: s.counts}
	t, _ := c.d.ep.ConnStats(c.id)
	st.setTransport(t)
	st.RPCsQueued, st.CommandAge = s.rpcs.queue.len(), s.snapshots.age
	if st.RTT, st.RTTVariation = t.RTT, t.RTTVariation; s.trip.measured {
		st.RTT, st.RTTVariation = millis(s.trip.rtt), millis(s.trip.variation)
	}
	return st, true
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Stats returns the counters of all connections. It allocates Drops.
func (d *Driver) Stats() DriverStats {
	st := DriverStats{Stats: d.sessions.ended}
	for _, s := range d.sessions.list {
		st.add(&s.counts)
		st.RPCsQueued += s.rpcs.queue.len()
	}
	if d.ep == nil {
		return st
	}
	t := d.ep.Stats()
	st.setTransport(t)
	st.Connections, st.Handshaking, st.Refused = t.Connections, t.HalfOpen, t.Refused
	st.Drops = maps.Clone(t.Drops)
	return st
}
