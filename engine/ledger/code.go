package ledger

import (
	"fmt"
	"strings"
)

// codeAlphabet are the symbols of join codes, those of alloc.CodeAlphabet.
const codeAlphabet = "6789BCDFGHJKLMNPQRTW"

// The length of a join code in symbols.
const (
	minCodeLen = 6
	maxCodeLen = 12
)

// codeLenShift is where the length stands in a packed code: 20^12 is less than
// 2^52, and with the length a code has 56 bits.
const codeLenShift = 52

// Code is a join code in 7 bytes. The zero Code is none.
type Code struct{ packed uint64 }

// ParseCode packs a join code: 6 to 12 symbols of 6789BCDFGHJKLMNPQRTW in upper
// case, or nothing for the zero Code. Anything else is an error.
func ParseCode(s string) (Code, error) {
	if s == "" {
		return Code{}, nil
	}
	if len(s) < minCodeLen || len(s) > maxCodeLen {
		return Code{}, fmt.Errorf("ledger: join code of %d symbols, not %d to %d", len(s), minCodeLen, maxCodeLen)
	}
	var number uint64
	for i := range len(s) {
		digit := strings.IndexByte(codeAlphabet, s[i])
		if digit < 0 {
			return Code{}, fmt.Errorf("ledger: %q in a join code is not one of %s", s[i], codeAlphabet)
		}
		number = number*uint64(len(codeAlphabet)) + uint64(digit)
	}
	return Code{uint64(len(s))<<codeLenShift | number}, nil
}

// IsZero reports whether c is no code.
func (c Code) IsZero() bool { return c == Code{} }

// String returns the symbols of the code, or "" for the zero Code.
func (c Code) String() string {
	length, number := c.split()
	var text [maxCodeLen]byte
	for i := length - 1; i >= 0; i-- {
		text[i] = codeAlphabet[number%uint64(len(codeAlphabet))]
		number /= uint64(len(codeAlphabet))
	}
	return string(text[:length])
}

func (c Code) split() (length int, number uint64) {
	return int(c.packed >> codeLenShift), c.packed & (1<<codeLenShift - 1)
}

// valid reports whether 56 bits read from a file are what ParseCode makes.
func (c Code) valid() bool {
	if c.IsZero() {
		return true
	}
	length, number := c.split()
	if length < minCodeLen || length > maxCodeLen {
		return false
	}
	codes := uint64(1)
	for range length {
		codes *= uint64(len(codeAlphabet))
	}
	return number < codes
}
