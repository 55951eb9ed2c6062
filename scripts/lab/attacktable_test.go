//go:build lab && linux

package lab

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

type attackResult struct {
	attack string        // what the attacker does
	rate   string        // e.g. "1,000 forged BINDs/s"
	honest string        // what the honest side had: "delivered 99.97 % of 12,000", "18 of 18 handshakes"
	p99    time.Duration // of honest datagrams or joins; 0: not measured
	state  string        // what the attack holds: "64 sessions"; empty: nothing that grows
	slow   bool          // the generator did not reach its rate
	damage bool          // the goal is missed

	failed bool // the test has failed for another reason
}

var attackResults struct {
	sync.Mutex
	lines []attackResult
}

// recordAttack adds a line to the table. The verdict is "DAMAGE" if the goal is missed,
// which fails t, "FAILED" if t has failed before for another reason, and "undecided" if
// the generator was too slow and nothing was damaged.
func recordAttack(t *testing.T, r attackResult) {
	t.Helper()
	if r.damage {
		t.Errorf("damage: %s, %s: %s", r.attack, r.rate, r.honest)
	}
	r.failed = t.Failed()
	attackResults.Lock()
	defer attackResults.Unlock()
	attackResults.lines = append(attackResults.lines, r)
}

// printAttacks prints the table, or nothing if no attack was made.
func printAttacks(to io.Writer) {
	attackResults.Lock()
	defer attackResults.Unlock()
	if len(attackResults.lines) == 0 {
		return
	}
	w := tabwriter.NewWriter(to, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(w, "attack\t rate\t honest side\t p99\t state held\t verdict")
	for _, r := range attackResults.lines {
		p99, verdict := "-", "ok"
		if r.p99 > 0 {
			p99 = r.p99.Round(10 * time.Microsecond).String()
		}
		switch {
		case r.damage:
			verdict = "DAMAGE"
		case r.failed:
			verdict = "FAILED"
		case r.slow:
			verdict = "undecided"
		}
		fmt.Fprintf(w, "%s\t %s\t %s\t %s\t %s\t %s\n", r.attack, cmp.Or(r.rate, "-"), cmp.Or(r.honest, "-"), p99, cmp.Or(r.state, "-"), verdict)
	}
	w.Flush()
}

// maxLossPerMille is the goal of honest delivery under attack: 99.9 %.
const maxLossPerMille = 1

func delivered(c Counts) string {
	return fmt.Sprintf("delivered %.2f %% of %d", 100*float64(c.Received)/float64(max(c.Sent, 1)), c.Sent)
}

func perSecond(rate float64, what string) string { return fmt.Sprintf("%.0f %s/s", rate, what) }

func lossy(c Counts) bool { return c.Sent == 0 || 1000*c.Lost() > maxLossPerMille*c.Sent }
