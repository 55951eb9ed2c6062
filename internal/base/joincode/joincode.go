// Package joincode defines the text of join codes: their alphabet, the length that a
// new code needs, and a code as a number of 52 bits, as stores and the state file hold
// it. Package alloc issues and resolves codes.
package joincode

import (
	"strings"
	"unicode"
)

// Alphabet holds the 20 symbols of join codes: no two look alike, and without vowels
// they spell no words.
const Alphabet = "6789BCDFGHJKLMNPQRTW"

// The length of a join code in symbols, as the Relay Allocations API allows.
const (
	MinLen = 6
	MaxLen = 12
)

// guessingSeconds is the least average time until guessing at the permitted rate hits
// any code of the tenant: 28 days.
const guessingSeconds = 28 * 24 * 60 * 60

// Len returns the length for a new join code of a tenant that will have active codes
// and may fail to join failuresPerSecond times a second: the smallest L from MinLen up
// with 20^L / (active × failuresPerSecond) of at least 28 days, or MaxLen. Older,
// shorter codes do not weaken the rule: they were issued while the tenant had few, so
// there are few of each length.
func Len(active int, failuresPerSecond float64) int {
	need := float64(max(active, 1)) * failuresPerSecond * guessingSeconds
	codes := 1.0
	for range MinLen {
		codes *= float64(len(Alphabet))
	}
	length := MinLen
	for codes < need && length < MaxLen {
		codes *= float64(len(Alphabet))
		length++
	}
	return length
}

// Trim returns a code without spaces, hyphens and characters without a width.
func Trim(code string) string {
	return strings.Map(func(r rune) rune {
		if isSeparator(r) {
			return -1
		}
		return r
	}, code)
}

// isSeparator reports whether Pack skips a character: white space, dashes, and format
// characters, which are the ones without a width.
func isSeparator(r rune) bool {
	const minus = '\u2212'
	return r == minus || unicode.IsSpace(r) || unicode.In(r, unicode.Zs, unicode.Pd, unicode.Cf)
}

// Pack returns a well-formed code, in either case and with any separators that Trim
// removes, as a number of 52 bits other than 0, and false for any other text. Different codes have different numbers, whatever their
// length: the symbols are the digits 1 to 20 of a number to the base of 20, and 12 of
// them stay below 2^52.
func Pack(code string) (uint64, bool) {
	var packed uint64
	length := 0
	for _, r := range code {
		if 'a' <= r && r <= 'z' {
			r -= 'a' - 'A'
		}
		digit := strings.IndexRune(Alphabet, r)
		switch {
		case digit >= 0 && length < MaxLen:
			packed = packed*uint64(len(Alphabet)) + uint64(digit) + 1
			length++
		case digit >= 0 || !isSeparator(r):
			return 0, false
		}
	}
	if length < MinLen {
		return 0, false
	}
	return packed, true
}

// Unpack is the inverse of [Pack]: "" for a number that Pack never returns.
func Unpack(packed uint64) string {
	var code [MaxLen]byte
	at := MaxLen
	for packed > 0 && at > 0 {
		packed--
		at--
		code[at] = Alphabet[packed%uint64(len(Alphabet))]
		packed /= uint64(len(Alphabet))
	}
	if packed > 0 || MaxLen-at < MinLen {
		return ""
	}
	return string(code[at:])
}
