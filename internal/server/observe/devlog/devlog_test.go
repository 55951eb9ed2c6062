package devlog

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestHandshakes: a refused handshake of DTLS is reported with its reason, at most
// once a second for each reason.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log testkit.LogBuffer
		d := New(slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithTimeout(t.Context(), 10*refusalsEvery+refusalsEvery/2)
		defer stop()
		calls := uint64(0)
		d.Run(ctx, func() engine.Stats { return engine.Stats{} }, func() dtls.Stats {
			calls++
			s := dtls.Stats{Events: make(map[string]uint64)}
			for _, r := range handshakeRefusals {
				s.Events[r.event] = 1000 * min(calls, 3)
			}
			s.Events["established"] = calls
			return s
		})
		if got := strings.Count(log.String(), "DTLS handshakes refused"); got != 2*len(handshakeRefusals) {
			t.Errorf("%d lines:\n%s", got, log.String())
		}
		for _, r := range handshakeRefusals {
			if strings.Count(log.String(), "count=1000 event="+r.event+" because=") != 2 {
				t.Errorf("%v:\n%s", r.event, log.String())
			}
		}
	})
}
