package metrics

import (
	"maps"
	"slices"

	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
)

// writeDTLS writes the counts of handshakes, sessions and records.
func writeDTLS(p *page, st dtls.Stats) {
	p.single("ferry_dtls_sessions", gauge, "Established DTLS sessions.", count(st.Sessions))
	p.single("ferry_dtls_half_open", gauge, "DTLS handshakes in progress.", count(st.HalfOpen))
	p.single("ferry_dtls_half_open_direct", gauge, "DTLS handshakes in progress without a cookie exchange.", count(st.Direct))
	p.family("ferry_dtls_events_total", counter, "Steps of DTLS handshakes, ends of sessions, and dropped records, by event.")
	p.samples("ferry_dtls_events_total", st.Events, "event")
}

func writeWebSocket(p *page, st websocket.Stats) {
	p.single("ferry_websocket_connections", gauge, "Open WebSockets.", count(st.Open))
	p.single("ferry_websocket_opened_total", counter, "WebSockets that were opened.", st.Opened)
	p.family("ferry_websocket_messages_total", counter, "WebSocket messages passed to the relay, and written.")
	p.sample("ferry_websocket_messages_total", st.Received, "direction", "in")
	p.sample("ferry_websocket_messages_total", st.Sent, "direction", "out")
	p.family("ferry_websocket_bytes_total", counter, "Bytes of those messages, without frames.")
	p.sample("ferry_websocket_bytes_total", st.ReceivedBytes, "direction", "in")
	p.sample("ferry_websocket_bytes_total", st.SentBytes, "direction", "out")
	p.single("ferry_websocket_pings_total", counter, "Pings that were sent.", st.Pings)
	p.family("ferry_websocket_refused_total", counter, "Requests that got no WebSocket, by reason.")
	p.samples("ferry_websocket_refused_total", st.Refused, "reason")
	p.family("ferry_websocket_drops_total", counter, "Messages that were dropped, by reason.")
	p.samples("ferry_websocket_drops_total", st.Dropped, "reason")
	p.family("ferry_websocket_ended_total", counter, "WebSockets that ended, by reason.")
	p.samples("ferry_websocket_ended_total", st.Ended, "reason")
}

// samples writes the counts of a family in the order of the label's values.
func (p *page) samples(name string, counts map[string]uint64, label string) {
	for _, value := range slices.Sorted(maps.Keys(counts)) {
		p.sample(name, counts[value], label, value)
	}
}
