package proto

import (
	"encoding/hex"
	"errors"
)

// IDLen is the size of an allocation id in bytes.
const IDLen = 16

// AllocationID names an allocation. On the wire it is 16 opaque bytes that are
// compared bytewise; Ferry puts a UUID there in RFC 4122 order, so that the
// bytes and the text that the HTTP API returns are the same id. No allocation has
// the zero id.
type AllocationID [IDLen]byte

// IsZero reports whether all bytes are zero, as in an ERROR that is about no
// allocation.
func (id AllocationID) IsZero() bool { return id == AllocationID{} }

// String returns the 36 characters of the UUID in lower case, for example
// 10111213-1415-1617-1819-1a1b1c1d1e1f.
func (id AllocationID) String() string {
	text := make([]byte, 0, 36)
	for i := range id {
		switch i {
		case 4, 6, 8, 10:
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, id[i:i+1])
	}
	return string(text)
}

// ErrIDText is returned by [ParseAllocationID].
var ErrIDText = errors.New("proto: not the text of a UUID")

// ParseAllocationID returns the id whose text [AllocationID.String] returns;
// letters may be in either case. Its error is [ErrIDText].
func ParseAllocationID(text string) (AllocationID, error) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return AllocationID{}, ErrIDText
	}
	digits := text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	var id AllocationID
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return AllocationID{}, ErrIDText
	}
	return id, nil
}
