package app

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestLargeMessageLine: the line names the setting that cures it for the sender's
// way, and warns of what is dropped, in dev also of what may be.
func TestLargeMessageLine(t *testing.T) {
	for name, c := range map[string]struct {
		mode     Mode
		from, to endpoint.Kind
		limit    int
		dropped  bool
		want     []string
	}{
		"udp to dtls":            {Serve, endpoint.KindUDP6, endpoint.KindDTLS, 1400, true, []string{"WARN", `"message is too large`, "(maxMessageSize: 1363) at senders on udp"}},
		"udp to dtls, forwarded": {Serve, endpoint.KindUDP4, endpoint.KindDTLS, 1363, false, []string{"INFO", `"message may be too large`, "(maxMessageSize: 1363) at senders on udp"}},
		"in dev":                 {Dev, endpoint.KindUDP4, endpoint.KindDTLS, 1363, false, []string{"WARN", `"message may be too large`}},
		"ws to dtls":             {Relay, endpoint.KindWS, endpoint.KindDTLS, 1400, true, []string{"WARN", "(maxMessageSize: 1377) at senders on ws"}},
		"udp to ws":              {Serve, endpoint.KindUDP4, endpoint.KindWS, 1386, true, []string{"WARN", "(maxMessageSize: 1363) at senders on udp"}},
		"a lower limit":          {Serve, endpoint.KindWS, endpoint.KindDTLS, 1000, true, []string{"(maxMessageSize: 1014) at senders on ws"}},
		"dtls to ws":             {Serve, endpoint.KindDTLS, endpoint.KindWS, 1386, true, []string{"(maxMessageSize: 1400) at senders on dtls"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log testkit.LogBuffer
			a := &App{opts: Options{Mode: c.mode, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
			a.onLargeMessage(engine.LargeMessageEvent{FromKind: c.from, ToKind: c.to, Size: 1438, Limit: c.limit, Dropped: c.dropped})
			for _, want := range c.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%q is missing in %s", want, log.String())
				}
			}
		})
	}
}
