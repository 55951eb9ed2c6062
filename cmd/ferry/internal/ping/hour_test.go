package ping

import (
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// TestHour: the report has the matches of the last hour only, the quantiles of those that succeeded, and
// since when a transport fails.
func TestHour(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	h := hour{region: "eu"}
	for i := range 200 {
		h.add(played{at(i), time.Duration(i+1) * time.Millisecond}, "")
	}
	want := operator.CanaryTransport{Transport: "udp", Region: "eu", Matches: 200, Median: 0.1, P99: 0.198}
	if r := h.report("udp"); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	h.add(played{at: at(200)}, "bind: no\nanswer")
	h.add(played{at: at(201)}, "bind: "+strings.Repeat("é", 200))
	r := h.report("udp")
	if r.Matches != 202 || r.Failed != 2 || !r.FailingSince.Equal(at(200)) || len(r.Failure) > maxFailure+3 || r.P99 != 0.198 {
		t.Errorf("while it fails: %+v", r)
	}
	h.add(played{at(3600 + 150), time.Second}, "")
	if r := h.report("udp"); r.Matches != 49+2+1 || r.Failed != 2 || !r.FailingSince.IsZero() || r.Failure != "" || r.P99 != 1 {
		t.Errorf("after an hour: %+v", r)
	}
	h.add(played{at: at(10_000)}, "bind: no\nanswer")
	if r := h.report("udp"); r.Matches != 1 || r.Failed != 1 || r.Median != 0 || r.Failure != "bind: no answer" {
		t.Errorf("without a success: %+v", r)
	}
	h.add(played{at: at(10_001)}, "join: \x1b[31msent by \u200bthe\x00 server\xff")
	if r := h.report("udp"); r.Failure != "join: ?[31msent by ?the? server?" {
		t.Errorf("with text that a console refuses: %q", r.Failure)
	}
}
