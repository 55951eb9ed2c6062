package dtls

import (
	"encoding/hex"

	"github.com/ferryrelay/ferry/proto"
)

// parseIdentity reads a PSK identity: the 16 bytes of the allocation's id, as
// real clients send it, or its text, as the documentation has it, in either case
// and with or without hyphens.
func parseIdentity(b []byte) (id proto.AllocationID, ok bool) {
	switch len(b) {
	case proto.IDLen:
		copy(id[:], b)
		return id, true
	case 36:
		var digits [32]byte
		n := 0
		for i, x := range b {
			if i == 8 || i == 13 || i == 18 || i == 23 {
				if x != '-' {
					return proto.AllocationID{}, false
				}
				continue
			}
			digits[n] = x
			n++
		}
		return parseHex(digits[:])
	case 32:
		return parseHex(b)
	}
	return proto.AllocationID{}, false
}

func parseHex(b []byte) (id proto.AllocationID, ok bool) {
	if _, err := hex.Decode(id[:], b); err != nil {
		return proto.AllocationID{}, false
	}
	return id, true
}
