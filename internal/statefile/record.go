package statefile

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/ferryrelay/ferry/proto"
)

// Record is what a restart must know of one allocation.
type Record struct {
	ID       proto.AllocationID
	Tenant   uint64 // alloc.Tenant.Hash
	Endpoint uint64 // keyed digest of where it is bound; 0: nowhere
	Code     Code   // join code of a host; zero: none
	Nonce    uint16 // of the last BIND that was accepted
	Links    uint16 // of a host: open links
	Flags    Flags
}

// Flags are seven bits about an allocation. Bits without a name are kept as
// they are given.
type Flags uint8

// The flags.
const (
	Host   Flags = 1 << 0 // a host; else a joiner
	Bound  Flags = 1 << 1 // a BIND was accepted, so Nonce counts
	Linked Flags = 1 << 2 // a joiner that has a link; a host that ever had one
)

// Place is where a record is in the file, from 1 on. Place 0 is none: what is
// done to it has no effect.
type Place uint32

// Found is a record that the process before left, and where it is.
type Found struct {
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

// used is set in the flags of every record, so that none is all zeros.
const used Flags = 1 << 7

// rawRecord is a record as it is in the file.
type rawRecord [recordSize]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum of a record at place p in a file with this seed.
// CRC32C is one-to-one in its initial value, so that one and the same record
// has another sum in each place.
func (raw *rawRecord) sum(seed uint32, p Place) uint32 {
	return crc32.Update(seed^uint32(p), castagnoli, raw[nonceAt:])
}

func (raw *rawRecord) seal(seed uint32, p Place) {
	binary.LittleEndian.PutUint32(raw[:], raw.sum(seed, p))
}

func (raw *rawRecord) free() bool { return *raw == rawRecord{} }

// intact reports whether raw is a record that was stored at place p.
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

// decode returns the record in raw, which is intact. It reports false for a
// join code that no process can have stored.
func (raw *rawRecord) decode() (r Record, ok bool) {
	const codeBits = 1<<56 - 1
	r = Record{
		ID:       proto.AllocationID(raw[idAt : idAt+proto.IDLen]),
		Tenant:   binary.LittleEndian.Uint64(raw[tenantAt:]),
		Endpoint: binary.LittleEndian.Uint64(raw[endpointAt:]),
		Code:     Code{binary.LittleEndian.Uint64(raw[codeAt:]) & codeBits},
		Nonce:    binary.LittleEndian.Uint16(raw[nonceAt:]),
		Links:    binary.LittleEndian.Uint16(raw[linksAt:]),
		Flags:    Flags(raw[flagsAt]) &^ used,
	}
	return r, r.Code.valid()
}
