package alloc

import (
	"hash"

	"github.com/ferryrelay/ferry/proto"
)

// The key of an allocation is the first block of HKDF-SHA512 (RFC 5869): the
// salt below extracts, and the info is the prefix below and the id.
const (
	deriverSalt = "ferry allocation key v1"
	deriverInfo = "ferry allocation "
)

// Deriver computes the keys of allocations from the master key, so that no
// allocation need keep its own. It belongs to one goroutine.
type Deriver struct {
	mac hash.Hash
	in  [len(deriverInfo) + proto.IDLen + 1]byte // info, id, HKDF's block number
	out [proto.KeyLen]byte
}

// NewDeriver returns a deriver of this relay's keys.
func (s *Sealer) NewDeriver() *Deriver {
	d := &Deriver{mac: s.newMAC()}
	copy(d.in[:], deriverInfo)
	d.in[len(d.in)-1] = 1
	d.mac.Reset() // lets the HMAC keep its padded key, which it does at the first Reset only
	return d
}

// Key writes the 64-byte key of allocation id to key: one HMAC-SHA512 over 34
// bytes and nothing allocated.
func (d *Deriver) Key(id proto.AllocationID, key *proto.Key) {
	copy(d.in[len(deriverInfo):], id[:])
	d.mac.Reset()
	d.mac.Write(d.in[:])
	d.mac.Sum(d.out[:0])
	*key = d.out
	clear(d.out[:]) // whoever prints a Deriver sees no key
}
