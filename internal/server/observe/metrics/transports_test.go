package metrics

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
)

func withTransports() Config {
	return Config{
		Stats: func() engine.Stats { return stats(0) }, Process: process,
		DTLS: func() dtls.Stats {
			return dtls.Stats{Sessions: 1, HalfOpen: 2, Direct: 3, Events: map[string]uint64{"established": 100, "drop_cookie": 101}}
		},
		WebSocket: func() websocket.Stats {
			return websocket.Stats{
				Open: 4, Opened: 5, Received: 6, ReceivedBytes: 7, Sent: 8, SentBytes: 9, Pings: 10,
				Refused: map[string]uint64{"origin": 200, "total": 201}, Dropped: map[string]uint64{"full": 300}, Ended: map[string]uint64{"slow": 400},
			}
		},
	}
}

func TestTransports(t *testing.T) {
	p := page1(t, New(withTransports()))
	want := map[string]float64{
		"ferry_dtls_sessions": 1, "ferry_dtls_half_open": 2, "ferry_dtls_half_open_direct": 3,
		"ferry_websocket_connections": 4, "ferry_websocket_opened_total": 5,
		`ferry_websocket_messages_total{direction="in"}`: 6, `ferry_websocket_bytes_total{direction="in"}`: 7,
		`ferry_websocket_messages_total{direction="out"}`: 8, `ferry_websocket_bytes_total{direction="out"}`: 9,
		"ferry_websocket_pings_total":                  10,
		`ferry_dtls_events_total{event="established"}`: 100, `ferry_dtls_events_total{event="drop_cookie"}`: 101,
		`ferry_websocket_refused_total{reason="origin"}`: 200, `ferry_websocket_refused_total{reason="total"}`: 201,
		`ferry_websocket_drops_total{reason="full"}`: 300, `ferry_websocket_ended_total{reason="slow"}`: 400,
	}
	for _, name := range p.series() {
		if !strings.HasPrefix(name, "ferry_dtls_") && !strings.HasPrefix(name, "ferry_websocket_") {
			continue
		}
		if got := p.values[name]; got != want[name] {
			t.Errorf("%s is %v, want %v", name, got, want[name])
		}
		if family, _, _ := strings.Cut(name, "{"); p.types[family] == "" {
			t.Errorf("%s has no type", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestTransportsThatAreOff: what is not there has no metrics.
func TestTransportsThatAreOff(t *testing.T) {
	cfg := withTransports()
	cfg.DTLS, cfg.WebSocket = nil, nil
	for _, name := range page1(t, New(cfg)).series() {
		if strings.Contains(name, "dtls") || strings.Contains(name, "websocket") {
			t.Errorf("%s is shown", name)
		}
	}
}
