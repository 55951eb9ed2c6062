package statefile

import (
	"encoding/binary"
	"hash/crc32"
)

// The layout of the journal: the change that was made last, or is being made.
//
//	0  4  CRC32C of the rest, keyed as records are
//	4  4  place
//	8  48 the record that it holds after the change, or zeros
const (
	entryPlaceAt  = 4
	entryRecordAt = 8
	entrySize     = entryRecordAt + recordSize
)

// rawEntry is the journal as it is in the file.
type rawEntry [entrySize]byte

func (e *rawEntry) sum(seed uint32) uint32 {
	return crc32.Update(seed, castagnoli, e[entryPlaceAt:])
}

// encode makes e say that raw goes to place p.
func (e *rawEntry) encode(seed uint32, p Place, raw *rawRecord) {
	binary.LittleEndian.PutUint32(e[entryPlaceAt:], uint32(p))
	copy(e[entryRecordAt:], raw[:])
	binary.LittleEndian.PutUint32(e[:], e.sum(seed))
}

// decode returns what was to go where; place 0 if the journal says nothing.
func (e *rawEntry) decode(seed uint32) (p Place, raw rawRecord) {
	if binary.LittleEndian.Uint32(e[:]) != e.sum(seed) {
		return 0, raw
	}
	return Place(binary.LittleEndian.Uint32(e[entryPlaceAt:])), rawRecord(e[entryRecordAt:])
}
