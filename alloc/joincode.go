package alloc

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// CodeAlphabet holds the 20 symbols of join codes: no two look alike, and without
// vowels they spell no words.
const CodeAlphabet = "6789BCDFGHJKLMNPQRTW"

// The length of a join code in symbols, as the Relay Allocations API allows.
const (
	MinCodeLen = 6
	MaxCodeLen = 12
)

// guessingSeconds is the least average time until guessing at the permitted rate hits
// any code of the tenant: 28 days.
const guessingSeconds = 28 * 24 * 60 * 60

// CodeLen returns the length for a new join code of a tenant that will have
// active codes and may fail to join failuresPerSecond times a second: the
// smallest L from MinCodeLen up with 20^L / (active × failuresPerSecond) of at
// least 28 days, or MaxCodeLen. Older, shorter codes do not weaken the rule:
// they were issued while the tenant had few, so there are few of each length.
func CodeLen(active int, failuresPerSecond float64) int {
	need := float64(max(active, 1)) * failuresPerSecond * guessingSeconds
	codes := 1.0
	for range MinCodeLen {
		codes *= float64(len(CodeAlphabet))
	}
	length := MinCodeLen
	for codes < need && length < MaxCodeLen {
		codes *= float64(len(CodeAlphabet))
		length++
	}
	return length
}

// ParseCode returns s in upper case if it is 6 to 12 symbols of the alphabet,
// in either case, and ErrCodeMalformed otherwise.
func ParseCode(s string) (string, error) {
	packed, ok := PackCode(s)
	if !ok {
		return "", ErrCodeMalformed
	}
	return UnpackCode(packed), nil
}

// PackCode returns a well-formed code, in either case, as a number of 52 bits
// other than 0, and false for anything else. Different codes have different
// numbers, whatever their length: the symbols are the digits 1 to 20 of a
// number to the base of 20, and 12 of them stay below 2^52.
func PackCode(code string) (uint64, bool) {
	if len(code) < MinCodeLen || len(code) > MaxCodeLen {
		return 0, false
	}
	var packed uint64
	for i := range len(code) {
		c := code[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		digit := strings.IndexByte(CodeAlphabet, c)
		if digit < 0 {
			return 0, false
		}
		packed = packed*uint64(len(CodeAlphabet)) + uint64(digit) + 1
	}
	return packed, true
}

// UnpackCode is the inverse of [PackCode]. It returns the code in upper case, and
// "" for a number that PackCode never returns.
func UnpackCode(packed uint64) string {
	var code [MaxCodeLen]byte
	at := MaxCodeLen
	for packed > 0 && at > 0 {
		packed--
		at--
		code[at] = CodeAlphabet[packed%uint64(len(CodeAlphabet))]
		packed /= uint64(len(CodeAlphabet))
	}
	if packed > 0 || MaxCodeLen-at < MinCodeLen {
		return ""
	}
	return string(code[at:])
}

// fairBytes is the number of byte values that newCode accepts: the largest
// multiple of the alphabet's size, so that all symbols are equally likely.
const fairBytes = 256 / len(CodeAlphabet) * len(CodeAlphabet)

// codeDraws bounds how often newCode reads random bytes, so that a broken source
// ends the loop. One byte in sixteen is rejected.
const codeDraws = 64

// newCode returns a code of length symbols, 6 to 12, drawn from random.
func newCode(random io.Reader, length int) (string, error) {
	var code, draw [MaxCodeLen]byte
	n := 0
	for range codeDraws {
		fresh := draw[:length-n]
		if _, err := io.ReadFull(random, fresh); err != nil {
			return "", fmt.Errorf("draw a join code: %w", err)
		}
		for _, b := range fresh {
			if int(b) < fairBytes {
				code[n] = CodeAlphabet[int(b)%len(CodeAlphabet)]
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
	// failureCells is the number of counters. Tenants that share one count
	// together, which makes their codes longer than necessary and never shorter.
	// All take 96 KiB.
	failureCells = 4096
	// failureWindow is the time constant of the running rate: after it, 63 % of a
	// new rate is visible, after five times as long 99 %.
	failureWindow = time.Minute
	// peakHalfLife is the time in which a peak of the rate decays to half.
	peakHalfLife = time.Hour
)

// failureRates measures how many joins per second fail, by tenant. It reports the
// rate of about the last minute, or an earlier peak that decays by half every
// hour, whichever is larger: guessing in bursts meets codes that are long enough
// for the burst. It refuses nothing; otherwise one player could lock out the other
// players of its tenant.
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

// add counts one failed join of the tenant with that hash.
func (f *failureRates) add(tenant uint64, now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.cells[tenant%failureCells]
	c.decay(now)
	c.recent++
	c.peak = max(c.peak, c.recent)
}

// perSecond returns the rate at which joins of the tenant fail.
func (f *failureRates) perSecond(tenant uint64, now time.Duration) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.cells[tenant%failureCells]
	c.decay(now)
	return c.peak / failureWindow.Seconds()
}

// decay updates the counts to now. An earlier now, from a concurrent call, changes
// nothing.
func (c *failureRate) decay(now time.Duration) {
	passed := now - c.at
	if passed <= 0 {
		return
	}
	c.at = now
	c.recent *= math.Exp(-float64(passed) / float64(failureWindow))
	c.peak = max(c.recent, c.peak*math.Exp2(-float64(passed)/float64(peakHalfLife)))
}
