package alloc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
)

// ParseCode returns s in upper case if it is 6 to 12 symbols of the alphabet,
// in either case, and ErrCodeMalformed otherwise. Spaces, hyphens and characters
// without a width do not count.
func ParseCode(s string) (string, error) {
	packed, ok := joincode.Pack(s)
	if !ok {
		return "", ErrCodeMalformed
	}
	return joincode.Unpack(packed), nil
}

// fairBytes is the number of byte values that newCode accepts: the largest
// multiple of the alphabet's size, so that all symbols are equally likely.
const fairBytes = 256 / len(joincode.Alphabet) * len(joincode.Alphabet)

// codeDraws bounds how often newCode reads random bytes, so that a broken source
// ends the loop. One byte in sixteen is rejected.
const codeDraws = 64

func newCode(random io.Reader, length int) (string, error) {
	var code, draw [joincode.MaxLen]byte
	n := 0
	for range codeDraws {
		fresh := draw[:length-n]
		if _, err := io.ReadFull(random, fresh); err != nil {
			return "", fmt.Errorf("draw a join code: %w", err)
		}
		for _, b := range fresh {
			if int(b) < fairBytes {
				code[n] = joincode.Alphabet[int(b)%len(joincode.Alphabet)]
				n++
			}
		}
		if n == length {
			return string(code[:n]), nil
		}
	}
	return "", fmt.Errorf("draw a join code: %d reads gave %d symbols: %w", codeDraws, n, ErrUnavailable)
}

const (
	// Tenants that share one of failureCells count together, which makes their
	// codes longer than necessary and never shorter. All take 96 KiB.
	failureCells = 4096
	// failureWindow is the time constant of the running rate: after it, 63 % of a
	// new rate is visible, after five times as long 99 %.
	failureWindow = time.Minute
	// peakHalfLife is the time in which a peak of the rate decays to half.
	peakHalfLife = time.Hour
)

// failureRates measures how many joins per second fail, by tenant: the rate of
// about the last minute, or an earlier peak that decays by half every hour,
// whichever is larger. It refuses nothing; otherwise one player could lock out the
// other players of its tenant.
type failureRates struct {
	mu    sync.Mutex // guards cells; held during no call
	cells [failureCells]failureRate
}

// failureRate holds decaying counts, in failed joins per failureWindow, as of the
// given time since the service was created.
type failureRate struct {
	recent, peak float64
	at           time.Duration
}

func (f *failureRates) add(tenant uint64, now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.cells[tenant%failureCells]
	c.decay(now)
	c.recent++
	c.peak = max(c.peak, c.recent)
}

func (f *failureRates) addError(t Tenant, err error, now time.Duration) {
	if errors.Is(err, ErrCodeNotFound) {
		f.add(t.Hash(), now)
	}
}

func (f *failureRates) perSecond(tenant uint64, now time.Duration) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.cells[tenant%failureCells]
	c.decay(now)
	return c.peak / failureWindow.Seconds()
}

// An earlier now, from a concurrent call, changes nothing.
func (c *failureRate) decay(now time.Duration) {
	passed := now - c.at
	if passed <= 0 {
		return
	}
	c.at = now
	c.recent *= math.Exp(-float64(passed) / float64(failureWindow))
	c.peak = max(c.recent, c.peak*math.Exp2(-float64(passed)/float64(peakHalfLife)))
}
