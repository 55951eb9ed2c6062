package alloc

import (
	"fmt"
	"io"

	"github.com/ferryrelay/ferry/proto"
)

const redacted = "[redacted]"

// MasterKey is the one secret of a relay: the sealing keys of all epochs and
// the keys of all its allocations are derived from it. It prints as
// "[redacted]" in every format; to store it, write its bytes.
type MasterKey [32]byte

// IsZero reports whether the key was never set.
func (k MasterKey) IsZero() bool { return k == MasterKey{} }

// Format writes "[redacted]" whatever the verb, %x and %d included. Package log/slog uses it, too.
func (k MasterKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText returns "[redacted]", so that JSON and YAML show no key either.
func (k MasterKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// RelayID identifies a relay for as long as it keeps its master key. It is a
// random UUID that the relay stores next to the key.
type RelayID [16]byte

// ParseRelayID returns the id whose text [RelayID.String] returns; letters may be
// in either case. Its error is proto.ErrIDText.
func ParseRelayID(text string) (RelayID, error) {
	id, err := proto.ParseAllocationID(text)
	return RelayID(id), err
}

// IsZero reports whether the id was never set.
func (r RelayID) IsZero() bool { return r == RelayID{} }

// String returns the id as lower-case UUID text.
func (r RelayID) String() string { return proto.AllocationID(r).String() }
