package dtls

import "encoding/binary"

// Sizes of a record with AES-GCM, RFC 6347 4.1 and RFC 5288 3.
const (
	headerLen = 13 // type, version, epoch, sequence number, length
	nonceLen  = 8  // the explicit half of the nonce
	saltLen   = 4  // the half of it that does not travel
	tagLen    = 16
	sealedLen = headerLen + nonceLen + tagLen // a record with an empty message
	aadLen    = 13                            // epoch and sequence number, type, version, length
)

// Content types.
const (
	typeChangeCipherSpec = 20
	typeAlert            = 21
	typeHandshake        = 22
	typeData             = 23
)

// Versions: 1.0 and 1.2, as they are on the wire.
const (
	version10 = 0xFEFF
	version12 = 0xFEFD
)

// epoch1 is the only epoch that is encrypted: there is no renegotiation.
const epoch1 = 1

// seqBits is the size of a sequence number; the epoch stands above it.
const seqBits = 48

// record is one record of a datagram; it lends the datagram's bytes.
type record struct {
	kind  byte
	epoch uint16
	seq   uint64
	whole []byte // with the header
	body  []byte
}

// parseRecord takes the first record off a datagram. It reports false for what
// is no record of DTLS 1.0 or 1.2, or is cut short.
func parseRecord(b []byte) (r record, rest []byte, ok bool) {
	if len(b) < headerLen {
		return record{}, nil, false
	}
	version := binary.BigEndian.Uint16(b[1:])
	n := headerLen + int(binary.BigEndian.Uint16(b[11:]))
	if version != version12 && version != version10 || n > len(b) {
		return record{}, nil, false
	}
	epochSeq := binary.BigEndian.Uint64(b[3:])
	return record{
		kind:  b[0],
		epoch: uint16(epochSeq >> seqBits),
		seq:   epochSeq & (1<<seqBits - 1),
		whole: b[:n:n],
		body:  b[headerLen:n:n],
	}, b[n:], true
}

// putHeader writes the header of a record whose body has n bytes.
func putHeader(b []byte, kind byte, version, epoch uint16, seq uint64, n int) {
	b[0] = kind
	binary.BigEndian.PutUint16(b[1:], version)
	binary.BigEndian.PutUint64(b[3:], uint64(epoch)<<seqBits|seq)
	binary.BigEndian.PutUint16(b[11:], uint16(n))
}

// appendPlain appends a record of epoch 0.
func appendPlain(dst []byte, kind byte, version uint16, seq uint64, body []byte) []byte {
	var header [headerLen]byte
	putHeader(header[:], kind, version, 0, seq, len(body))
	return append(append(dst, header[:]...), body...)
}
