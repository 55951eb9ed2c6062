package ping

import (
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const reportOver = time.Hour

// maxFailure bounds the text of a failure in a report, in bytes.
const maxFailure = 200

// hour holds the matches over one transport in the last hour: at most 3,600, since rounds are a second
// apart.
type hour struct {
	matches      []played // the oldest first
	region       string   // of the last allocation
	failingSince time.Time
	failure      string
}

// played is a match: how long it took until the player was in, zero if it failed.
type played struct {
	at      time.Time
	untilIn time.Duration
}

// add adds a match; failure is "" if it succeeded.
func (h *hour) add(m played, failure string) {
	old := slices.IndexFunc(h.matches, func(x played) bool { return m.at.Sub(x.at) < reportOver })
	if old < 0 {
		old = len(h.matches)
	}
	h.matches = append(slices.Delete(h.matches, 0, old), m)
	switch {
	case failure == "":
		h.failingSince = time.Time{}
	case h.failure == "":
		h.failingSince = m.at
	}
	h.failure = failure
}

// line returns the beginning of a text as one line. A part of it may be from another machine, and a
// report with a character that is not printable is refused.
func line(text string) string {
	text = printable.Line(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	if len(text) > maxFailure {
		text = strings.ToValidUTF8(text[:maxFailure], "") + "…"
	}
	return text
}

func (h *hour) report(transport string) operator.CanaryTransport {
	r := operator.CanaryTransport{
		Transport: transport, Region: h.region, Matches: len(h.matches), FailingSince: h.failingSince, Failure: line(h.failure),
	}
	var in []time.Duration
	for _, m := range h.matches {
		if m.untilIn > 0 {
			in = append(in, m.untilIn)
		}
	}
	r.Failed = r.Matches - len(in)
	if len(in) > 0 {
		slices.Sort(in)
		r.Median, r.P99 = in[(len(in)-1)/2].Seconds(), in[(len(in)*99+99)/100-1].Seconds()
	}
	return r
}
