package alloc

import (
	"math"
	"sync"
	"time"
)

const (
	// guessCells is how many tenants are told apart. Tenants that fall into
	// one cell count together, which makes their codes longer than need be and
	// never shorter; 96 KiB in all.
	guessCells = 4096
	// guessWindow is the time constant of the running rate: after it, 63 % of
	// a new rate is seen, after five times as long 99 %.
	guessWindow = time.Minute
	// guessHalfLife is how long a peak of the rate takes to count half.
	guessHalfLife = time.Hour
)

// guessing observes how many joins per second fail, by tenant. What it reports
// is the rate of the last minute or so, or a former peak that has been halved
// every hour since, whichever is larger: whoever guesses in bursts meets codes
// made for the burst. It refuses nothing, for then one player could lock out
// the others of its tenant.
type guessing struct {
	mu    sync.Mutex // guards cells; held for no call
	cells [guessCells]guessCell
}

// guessCell holds decaying counts, in failed joins per guessWindow, as they
// were at the given time since the service was made.
type guessCell struct {
	recent, peak float64
	at           time.Duration
}

// add counts one failed join of the tenant with that hash.
func (g *guessing) add(tenant uint64, now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.cells[tenant%guessCells]
	c.decay(now)
	c.recent++
	c.peak = max(c.peak, c.recent)
}

// perSecond returns the rate at which joins of the tenant fail.
func (g *guessing) perSecond(tenant uint64, now time.Duration) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &g.cells[tenant%guessCells]
	c.decay(now)
	return c.peak / guessWindow.Seconds()
}

// decay brings the counts to now. Calls that overtook one another change
// nothing by their being late.
func (c *guessCell) decay(now time.Duration) {
	passed := now - c.at
	if passed <= 0 {
		return
	}
	c.at = now
	c.recent *= math.Exp(-float64(passed) / float64(guessWindow))
	c.peak = max(c.recent, c.peak*math.Exp2(-float64(passed)/float64(guessHalfLife)))
}
