package probe

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Line is an event, one per line of output. JSON omits empty fields.
type Line struct {
	Seconds float64 `json:"seconds"` // since the start
	Event   string  `json:"event"`   // listening, connecting, state, data, stats, end

	Address  string `json:"address,omitempty"`
	JoinCode string `json:"join_code,omitempty"`

	Connection string `json:"connection,omitempty"` // a name that is not used again
	State      string `json:"state,omitempty"`
	NetworkID  int32  `json:"network_id,omitempty"`
	Reason     string `json:"reason,omitempty"`
	PeerReason string `json:"peer_reason,omitempty"` // from the close notice
	PeerText   string `json:"peer_text,omitempty"`

	Data     string `json:"data,omitempty"` // what kind: rpc, connect payload, message
	Pipeline int    `json:"pipeline,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
	Head     string `json:"head,omitempty"` // first bytes, hexadecimal

	Stats *Stats `json:"stats,omitempty"`
	Error string `json:"error,omitempty"`
}

// Stats are the counters of a connection or, with Peers, of the whole probe.
type Stats struct {
	Peers      int     `json:"peers,omitempty"` // connections now
	RTT        float64 `json:"rtt_ms,omitempty"`
	Variation  float64 `json:"rtt_variation_ms,omitempty"`
	Sent       uint64  `json:"sent"` // datagrams
	SentBytes  uint64  `json:"sent_bytes"`
	Received   uint64  `json:"received"`
	RecvBytes  uint64  `json:"received_bytes"`
	Resent     uint64  `json:"resent,omitempty"`
	Duplicates uint64  `json:"duplicates,omitempty"`
	InFlight   int     `json:"in_flight,omitempty"`

	RPCsSent     uint64 `json:"rpcs_sent,omitempty"`
	RPCsReceived uint64 `json:"rpcs_received,omitempty"`
	StreamSent   uint64 `json:"stream_sent,omitempty"` // commands or snapshots
	StreamGot    uint64 `json:"stream_received,omitempty"`
	StreamLate   uint64 `json:"stream_late,omitempty"`
	StreamLost   uint64 `json:"stream_lost,omitempty"`

	Drops     map[string]uint64 `json:"drops,omitempty"`     // datagrams that the transport dropped, by name
	Simulated map[string]uint64 `json:"simulated,omitempty"` // what the bad network did
}

// printer writes lines. Its first error of writing ends the probe.
type printer struct {
	w     io.Writer
	json  bool
	start time.Time
	err   error
}

func (p *printer) print(l Line) {
	if p.err != nil {
		return
	}
	l.Seconds = float64(time.Since(p.start).Milliseconds()) / 1000
	if p.json {
		p.err = json.NewEncoder(p.w).Encode(l)
		return
	}
	_, p.err = fmt.Fprintf(p.w, "%8.3f s  %s\n", l.Seconds, l.text())
}

// text is the line for people.
func (l Line) text() string {
	words := []string{l.Event}
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(l.Connection != "", "%s", l.Connection)
	add(l.State != "", "%s", l.State)
	add(l.NetworkID != 0, "as player %d", l.NetworkID)
	add(l.Address != "", "at %s", l.Address)
	add(l.JoinCode != "", "join code %s", l.JoinCode)
	add(l.Reason != "", "because: %s", l.Reason)
	add(l.PeerReason != "", "(the peer says: %s: %q)", l.PeerReason, l.PeerText)
	add(l.Data != "", "%s of %d bytes", l.Data, l.Bytes)
	add(l.Pipeline != 0, "on pipeline %d", l.Pipeline)
	add(l.Head != "", "%s", l.Head)
	if l.Stats != nil {
		words = append(words, l.Stats.text())
	}
	add(l.Error != "", "error: %s", l.Error)
	return strings.Join(words, "  ")
}

func (s Stats) text() string {
	var b strings.Builder
	add := func(when bool, format string, args ...any) {
		if when {
			fmt.Fprintf(&b, format+"  ", args...)
		}
	}
	add(s.Peers > 0, "peers %d", s.Peers)
	add(s.RTT > 0 && s.Received > 0, "rtt %.1f ± %.1f ms", s.RTT, s.Variation)
	add(true, "sent %d (%d B)  received %d (%d B)", s.Sent, s.SentBytes, s.Received, s.RecvBytes)
	add(s.Resent+s.Duplicates > 0, "resent %d  duplicates %d", s.Resent, s.Duplicates)
	add(s.InFlight > 0, "in flight %d", s.InFlight)
	add(s.RPCsSent+s.RPCsReceived > 0, "rpcs %d out %d in", s.RPCsSent, s.RPCsReceived)
	add(s.StreamSent+s.StreamGot > 0, "stream %d out %d in %d late %d lost", s.StreamSent, s.StreamGot, s.StreamLate, s.StreamLost)
	for _, m := range []struct {
		name   string
		counts map[string]uint64
	}{{"dropped", s.Drops}, {"simulated", s.Simulated}} {
		add(len(m.counts) > 0, "%s %s", m.name, listed(m.counts))
	}
	return strings.TrimRight(b.String(), " ")
}

// maxHead is how many bytes of a message are shown.
const maxHead = 24

func head(b []byte) string { return hex.EncodeToString(b[:min(len(b), maxHead)]) }
