package statefile

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// The layout of the header. It fills a page, so that places begin on one.
//
//	0   8   magic                   32  16  digest of the run of the machine
//	8   2   version                 48  4   state
//	10  2   size of a record        56  128 boots of the relay, newest first
//	12  4   capacity                184 4   CRC32C of what is before
//	16  16  relay id                248 8   number of changes (a word)
//	52  4   time of Close           256 56  journal
const (
	magic       = "FERRYLDG"
	version     = 2
	versionAt   = 8
	sizeAt      = 10
	capacityAt  = 12
	relayAt     = 16
	machineAt   = 32
	stateAt     = 48
	closedAt    = 52 // seconds since 1970; 0: the file is open, or unknown
	bootsAt     = 56
	headerSumAt = bootsAt + 8*maxBoots
	headerLen   = headerSumAt + 4
	countAt     = journalAt - 8
	journalAt   = 256
	headerSize  = 4096
)

// maxBoots: the recovery of an allocation of an older one is lenient.
const maxBoots = 16

type state uint32

const (
	stateComplete state = 1 << 0 // all allocations of the newest boot are there
	stateSettled  state = 1 << 1 // and all of the boots before it
	stateClosed   state = 1 << 2 // synced; nothing was changed afterwards
)

type header struct {
	capacity int // places in the file
	relay    [16]byte
	machine  [16]byte // zero: unknown
	state    state
	closed   uint32   // time of Close
	boots    []uint64 // at most maxBoots
}

func (h *header) encode() []byte {
	b := make([]byte, countAt)
	copy(b, magic)
	binary.LittleEndian.PutUint16(b[versionAt:], version)
	binary.LittleEndian.PutUint16(b[sizeAt:], recordSize)
	binary.LittleEndian.PutUint32(b[capacityAt:], uint32(h.capacity))
	copy(b[relayAt:], h.relay[:])
	copy(b[machineAt:], h.machine[:])
	binary.LittleEndian.PutUint32(b[stateAt:], uint32(h.state))
	binary.LittleEndian.PutUint32(b[closedAt:], h.closed)
	for i, boot := range h.boots {
		binary.LittleEndian.PutUint64(b[bootsAt+8*i:], boot)
	}
	binary.LittleEndian.PutUint32(b[headerSumAt:], crc32.Checksum(b[:headerSumAt], castagnoli))
	return b
}

// parseHeader accepts truncated bytes.
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
		closed:   binary.LittleEndian.Uint32(b[closedAt:]),
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

// The reason is nil if the file may be complete.
func (h *header) checkComplete(relay, machine [16]byte, size int64) error {
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

func bootsWith(boots []uint64, boot uint64) []uint64 {
	next := slices.DeleteFunc(slices.Clone(boots), func(b uint64) bool { return b == boot })
	if boot != 0 {
		next = slices.Insert(next, 0, boot)
	}
	return next[:min(len(next), maxBoots)]
}

func fileSize(places int) int64 { return offset(Place(places + 1)) }

func offset(p Place) int64 { return headerSize + (int64(p)-1)*recordSize }

// recordSeed is the key of the checksums of records, so that those of another version or relay do
// not match.
func recordSeed(relay [16]byte) uint32 {
	b := binary.LittleEndian.AppendUint16([]byte(magic), version)
	return crc32.Checksum(append(b, relay[:]...), castagnoli)
}

// Record is the state of one allocation that survives a restart.
type Record struct {
	ID       proto.AllocationID
	Tenant   uint64 // alloc.Tenant.Hash
	Endpoint uint64 // keyed digest of where it is bound; 0: nowhere; of a Candidate: see there
	Code     Code   // join code of a host; zero: none
	Nonce    uint16 // of the last BIND that was accepted
	Links    uint16 // of a host: open links
	Flags    Flags
}

// Flags are seven bits. Unnamed bits are stored too.
type Flags uint8

const (
	Host   Flags = 1 << 0 // a host; else a joiner
	Bound  Flags = 1 << 1 // a BIND was accepted, so Nonce counts
	Linked Flags = 1 << 2 // a joiner that has a link; a host that ever had one
	// Candidate: an unbound reservation for the place of another host, whose id Endpoint has.
	Candidate Flags = 1 << 3
	// Left: a host whose place players may take; a joiner whose link one side has closed.
	Left Flags = 1 << 4
	// Removed: a joiner whose host has disconnected it.
	Removed Flags = 1 << 5
)

// Place is the number of a record in the file, from 1 on. Changes of place 0 have no effect.
type Place uint32

type FoundRecord struct {
	Record
	Place Place
}

// The layout of a record. Numbers are little-endian and aligned.
//
//	0  4  CRC32C of the rest        24  8  tenant
//	4  2  nonce                     32  8  endpoint
//	6  2  links                     40  7  join code
//	8  16 id                        47  1  flags; the top bit is set
const (
	nonceAt    = 4
	linksAt    = 6
	idAt       = 8
	tenantAt   = 24
	endpointAt = 32
	codeAt     = 40
	flagsAt    = 47
	recordSize = 48
)

// Every record has used, so that none is all zeros.
const used Flags = 1 << 7

type rawRecord [recordSize]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is CRC32C, which is one-to-one in its initial value: one and the same record has another sum
// in each place.
func (raw *rawRecord) sum(seed uint32, p Place) uint32 {
	return crc32.Update(seed^uint32(p), castagnoli, raw[nonceAt:])
}

func (raw *rawRecord) seal(seed uint32, p Place) {
	binary.LittleEndian.PutUint32(raw[:], raw.sum(seed, p))
}

func (raw *rawRecord) free() bool { return *raw == rawRecord{} }

func (raw *rawRecord) intact(seed uint32, p Place) bool {
	return binary.LittleEndian.Uint32(raw[:]) == raw.sum(seed, p) && Flags(raw[flagsAt])&used != 0
}

func (raw *rawRecord) setNonce(n uint16)    { binary.LittleEndian.PutUint16(raw[nonceAt:], n) }
func (raw *rawRecord) setLinks(n uint16)    { binary.LittleEndian.PutUint16(raw[linksAt:], n) }
func (raw *rawRecord) setEndpoint(e uint64) { binary.LittleEndian.PutUint64(raw[endpointAt:], e) }
func (raw *rawRecord) setFlags(f Flags)     { raw[flagsAt] = byte(f | used) }

// setCode keeps the flags, which share a word with the code.
func (raw *rawRecord) setCode(c Code) {
	flags := raw[flagsAt]
	binary.LittleEndian.PutUint64(raw[codeAt:], c.packed)
	raw[flagsAt] = flags
}

func (raw *rawRecord) encode(r *Record) {
	copy(raw[idAt:], r.ID[:])
	binary.LittleEndian.PutUint64(raw[tenantAt:], r.Tenant)
	raw.setEndpoint(r.Endpoint)
	raw.setNonce(r.Nonce)
	raw.setLinks(r.Links)
	raw.setCode(r.Code)
	raw.setFlags(r.Flags)
}

// decode reports false for a join code that no process can have stored. The record is intact.
func (raw *rawRecord) decode() (r Record, ok bool) {
	const codeBits = 1<<56 - 1
	r = Record{
		ID:       proto.AllocationID(raw[idAt : idAt+len(proto.AllocationID{})]),
		Tenant:   binary.LittleEndian.Uint64(raw[tenantAt:]),
		Endpoint: binary.LittleEndian.Uint64(raw[endpointAt:]),
		Code:     Code{binary.LittleEndian.Uint64(raw[codeAt:]) & codeBits},
		Nonce:    binary.LittleEndian.Uint16(raw[nonceAt:]),
		Links:    binary.LittleEndian.Uint16(raw[linksAt:]),
		Flags:    Flags(raw[flagsAt]) &^ used,
	}
	return r, r.Code.isValid()
}

// Code is a join code as joincode.Pack packs it, zero for none.
type Code struct{ packed uint64 }

// ParseCode packs a join code, in upper case; "" is the zero Code.
func ParseCode(s string) (Code, error) {
	if s == "" {
		return Code{}, nil
	}
	packed, ok := joincode.Pack(s)
	if !ok || joincode.Unpack(packed) != s {
		return Code{}, fmt.Errorf("statefile: %q is not a join code of %d to %d symbols in upper case",
			s, joincode.MinLen, joincode.MaxLen)
	}
	return Code{packed}, nil
}

// IsZero reports whether c is no code.
func (c Code) IsZero() bool { return c == Code{} }

// String returns the symbols of the code, or "" for the zero Code.
func (c Code) String() string { return joincode.Unpack(c.packed) }

func (c Code) isValid() bool { return c.IsZero() || c.String() != "" }

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

type rawEntry [entrySize]byte

func (e *rawEntry) sum(seed uint32) uint32 {
	return crc32.Update(seed, castagnoli, e[entryPlaceAt:])
}

func (e *rawEntry) encode(seed uint32, p Place, raw *rawRecord) {
	binary.LittleEndian.PutUint32(e[entryPlaceAt:], uint32(p))
	copy(e[entryRecordAt:], raw[:])
	binary.LittleEndian.PutUint32(e[:], e.sum(seed))
}

// The place is 0 if the journal is empty or damaged.
func (e *rawEntry) decode(seed uint32) (p Place, raw rawRecord) {
	if binary.LittleEndian.Uint32(e[:]) != e.sum(seed) {
		return 0, raw
	}
	return Place(binary.LittleEndian.Uint32(e[entryPlaceAt:])), rawRecord(e[entryRecordAt:])
}
