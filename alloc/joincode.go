package alloc

import (
	"fmt"
	"io"
	"strings"
)

// CodeAlphabet holds the 20 symbols of join codes: none is taken for another,
// and without vowels they spell no words.
const CodeAlphabet = "6789BCDFGHJKLMNPQRTW"

// The length of a join code in symbols, as the Relay Allocations API allows.
const (
	MinCodeLen = 6
	MaxCodeLen = 12
)

// guessSeconds is how long guessing at the permitted rate has to take, on
// average, until it hits any code of the tenant: 28 days.
const guessSeconds = 28 * 24 * 60 * 60

// CodeLen returns the length for a new join code of a tenant that will have
// active codes and may fail to join failuresPerSecond times a second: the
// smallest L from MinCodeLen up with 20^L / (active × failuresPerSecond) of at
// least 28 days, or MaxCodeLen. Older, shorter codes do not weaken the rule:
// they were made while the tenant had few, so there are few of each length.
func CodeLen(active int, failuresPerSecond float64) int {
	need := float64(max(active, 1)) * failuresPerSecond * guessSeconds
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

// UnpackCode returns the code, in upper case, that [PackCode] made packed of,
// and "" for a number that it makes of none.
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

// codeDraws bounds how often newCode reads random bytes. One byte in sixteen
// is refused, so that a second read is rare and a broken source ends the loop.
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
