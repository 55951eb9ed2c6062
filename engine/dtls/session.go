package dtls

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// session is an established session. What is not an atomic is set before the
// session is published in the table, or has an owner that is named.
type session struct {
	serial uint64
	id     proto.AllocationID
	from   endpoint.Endpoint
	in     direction
	out    direction
	window window
	// floor is below every record of the client that may be accepted: the process
	// before may have accepted those below it.
	floor  uint64
	stored *reservation // nil: the session is in no file

	sent  atomic.Uint64 // the next sequence number in epoch 1
	heard atomic.Int64  // when an authentic record came, in Records.clock
	ended atomic.Bool   // it is in the table only until control has swept
	// probed: a ClientHello came from the source after the last authentic record;
	// probe: when, since the start of Records.
	probed atomic.Bool
	probe  atomic.Int64

	bySource atomic.Pointer[session] // chains of the table, written under its lock
	bySerial atomic.Pointer[session]

	// The rest is owned by the worker of the source's prefix.

	plain    uint64 // the next sequence number in epoch 0
	finished []byte // our Finished, for when it got lost
}

// scratch is the memory for the additional data of one record: it goes through
// an interface, so it cannot be on the stack.
type scratch [aadLen]byte

// open decrypts a record of epoch 1 in place; it overwrites parts of the header.
// The caller deals with the window.
func (d *direction) open(whole []byte, aad *scratch) (body []byte, ok bool) {
	n := len(whole) - sealedLen
	if n < 0 {
		return nil, false
	}
	copy(aad[:8], whole[3:11])
	copy(aad[8:11], whole[:3])
	binary.BigEndian.PutUint16(aad[11:], uint16(n))
	// The salt goes where the nonce needs it: before its explicit half.
	copy(whole[headerLen-saltLen:], d.salt[:])
	nonce := whole[headerLen-saltLen : headerLen+nonceLen]
	sealed := whole[headerLen+nonceLen:]
	body, err := d.aead.Open(sealed[:0], nonce, sealed, aad[:])
	return body, err == nil
}

// sealRoom is how much longer than its message the memory for a record must be:
// the additional data is put behind it for a moment, so that it needs no memory
// of its own.
const sealRoom = sealedLen + aadLen

// maxMessage is the most that a record may hold, RFC 5246 6.2.1.
const maxMessage = 1 << 14

// seal appends a record of epoch 1 to dst. It reports false when msg is longer
// than maxMessage, the sequence numbers are used up, which takes 2^48 records, or
// the next one cannot be reserved.
// Any goroutine may call it.
func (s *session) seal(dst []byte, kind byte, msg []byte) ([]byte, bool) {
	if len(msg) > maxMessage {
		return dst, false
	}
	seq := s.sent.Add(1) - 1
	if seq >= 1<<seqBits {
		s.sent.Add(^uint64(0))
		return dst, false
	}
	if s.stored != nil && !s.stored.coverSent(seq) {
		return dst, false
	}
	at := len(dst)
	dst = slices.Grow(dst, len(msg)+sealRoom)
	b := dst[at : at+len(msg)+sealRoom]
	end := len(msg) + sealedLen
	putHeader(b, kind, version12, epoch1, seq, end-headerLen)
	aad := b[end:]
	copy(aad[:8], b[3:11])
	copy(aad[8:11], b[:3])
	binary.BigEndian.PutUint16(aad[11:], uint16(len(msg)))
	// The header's last bytes hold the salt until the record is sealed, so that
	// salt and explicit nonce are in one piece.
	copy(b[headerLen-saltLen:], s.out.salt[:])
	binary.BigEndian.PutUint64(b[headerLen:], epoch1<<seqBits|seq)
	s.out.aead.Seal(b[headerLen+nonceLen:headerLen+nonceLen], b[headerLen-saltLen:headerLen+nonceLen], msg, aad)
	putHeader(b, kind, version12, epoch1, seq, end-headerLen)
	return dst[:at+end], true
}
