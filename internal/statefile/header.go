package statefile

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// The layout of the header. It fills a page, so that places begin on one.
//
//	0   8   magic                   32  16  digest of the run of the machine
//	8   2   version                 48  4   state
//	10  2   size of a record        56  128 boots of the relay, newest first
//	12  4   capacity                184 4   CRC32C of what is before
//	16  16  relay id                256 56  journal
const (
	magic       = "FERRYLDG"
	version     = 2
	versionAt   = 8
	sizeAt      = 10
	capacityAt  = 12
	relayAt     = 16
	machineAt   = 32
	stateAt     = 48
	bootsAt     = 56
	headerSumAt = bootsAt + 8*maxBoots
	headerLen   = headerSumAt + 4
	journalAt   = 256
	headerSize  = 4096
)

// maxBoots is how many runs of the relay a file remembers: whoever plays
// through more restarts than that is recovered leniently.
const maxBoots = 16

// state is what may be concluded from a file.
type state uint32

const (
	stateComplete state = 1 << 0 // all allocations of the newest boot are there
	stateSettled  state = 1 << 1 // and all of the boots before it
	stateClosed   state = 1 << 2 // synced; nothing was changed afterwards
)

// header is what a file says of itself.
type header struct {
	capacity int // places in the file
	relay    [16]byte
	machine  [16]byte // zero: unknown
	state    state
	boots    []uint64 // at most maxBoots
}

func (h *header) encode() []byte {
	b := make([]byte, headerLen)
	copy(b, magic)
	binary.LittleEndian.PutUint16(b[versionAt:], version)
	binary.LittleEndian.PutUint16(b[sizeAt:], recordSize)
	binary.LittleEndian.PutUint32(b[capacityAt:], uint32(h.capacity))
	copy(b[relayAt:], h.relay[:])
	copy(b[machineAt:], h.machine[:])
	binary.LittleEndian.PutUint32(b[stateAt:], uint32(h.state))
	for i, boot := range h.boots {
		binary.LittleEndian.PutUint64(b[bootsAt+8*i:], boot)
	}
	binary.LittleEndian.PutUint32(b[headerSumAt:], crc32.Checksum(b[:headerSumAt], castagnoli))
	return b
}

// parseHeader reads a header, of which b may be the beginning only.
func parseHeader(b []byte) (h header, err error) {
	if len(b) < headerLen || string(b[:len(magic)]) != magic {
		return h, ErrHeader
	}
	if v := binary.LittleEndian.Uint16(b[versionAt:]); v != version {
		return h, fmt.Errorf("%w: %d, not %d", ErrVersion, v, version)
	}
	if binary.LittleEndian.Uint32(b[headerSumAt:]) != crc32.Checksum(b[:headerSumAt], castagnoli) {
		return h, ErrHeader
	}
	h = header{
		capacity: int(binary.LittleEndian.Uint32(b[capacityAt:])),
		relay:    [16]byte(b[relayAt:]),
		machine:  [16]byte(b[machineAt:]),
		state:    state(binary.LittleEndian.Uint32(b[stateAt:])),
	}
	for i := range maxBoots {
		if boot := binary.LittleEndian.Uint64(b[bootsAt+8*i:]); boot != 0 {
			h.boots = append(h.boots, boot)
		}
	}
	if h.capacity < 1 || h.capacity > MaxCapacity || binary.LittleEndian.Uint16(b[sizeAt:]) != recordSize {
		return header{}, ErrHeader
	}
	return h, nil
}

// judge returns why a file of size bytes is not complete, as far as its header
// tells; nil if it may be.
func (h *header) judge(relay, machine [16]byte, size int64) error {
	switch {
	case h.relay != relay:
		return ErrForeign
	case h.state&stateComplete == 0:
		return ErrUnstored
	case h.state&stateClosed == 0 && (h.machine != machine || machine == [16]byte{}):
		return ErrMachine
	case size < fileSize(h.capacity):
		return fmt.Errorf("%w: %d bytes of %d", ErrTruncated, size, fileSize(h.capacity))
	}
	return nil
}

// after returns the boots of a file that goes on in the given boot.
func after(boots []uint64, boot uint64) []uint64 {
	next := slices.DeleteFunc(slices.Clone(boots), func(b uint64) bool { return b == boot })
	if boot != 0 {
		next = slices.Insert(next, 0, boot)
	}
	return next[:min(len(next), maxBoots)]
}

// fileSize returns the bytes of a file with so many places.
func fileSize(places int) int64 { return offset(Place(places + 1)) }

// offset returns where a place begins.
func offset(p Place) int64 { return headerSize + (int64(p)-1)*recordSize }

// recordSeed keys the checksums of records: those of another version or
// another relay do not hold.
func recordSeed(relay [16]byte) uint32 {
	b := binary.LittleEndian.AppendUint16([]byte(magic), version)
	return crc32.Checksum(append(b, relay[:]...), castagnoli)
}
