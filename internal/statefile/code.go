package statefile

import (
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
)

// Code is a join code in 7 bytes, as alloc.PackCode packs it. The zero Code is
// none.
type Code struct{ packed uint64 }

// ParseCode packs a join code, in upper case, or nothing for the zero Code.
// Anything else is an error.
func ParseCode(s string) (Code, error) {
	if s == "" {
		return Code{}, nil
	}
	packed, ok := alloc.PackCode(s)
	if !ok || alloc.UnpackCode(packed) != s {
		return Code{}, fmt.Errorf("state file: %q is not a join code of %d to %d symbols in upper case",
			s, alloc.MinCodeLen, alloc.MaxCodeLen)
	}
	return Code{packed}, nil
}

// IsZero reports whether c is no code.
func (c Code) IsZero() bool { return c == Code{} }

// String returns the symbols of the code, or "" for the zero Code.
func (c Code) String() string { return alloc.UnpackCode(c.packed) }

// valid reports whether 56 bits read from a file are what ParseCode makes.
func (c Code) valid() bool { return c.IsZero() || c.String() != "" }
