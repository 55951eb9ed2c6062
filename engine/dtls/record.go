package dtls

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"hash"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/proto"
	"github.com/pion/dtls/v3/pkg/crypto/prf"
)

// Sizes of a record with AES-GCM, RFC 6347 4.1 and RFC 5288 3.
const (
	headerLen = 13 // type, version, epoch, sequence number, length
	nonceLen  = 8  // the explicit half of the nonce
	saltLen   = 4  // the half of it that does not travel
	tagLen    = 16
	sealedLen = headerLen + nonceLen + tagLen // a record with an empty message
	aadLen    = 13                            // epoch and sequence number, type, version, length
)

const (
	typeChangeCipherSpec = 20
	typeAlert            = 21
	typeHandshake        = 22
	typeData             = 23
)

const (
	version10 = 0xFEFF
	version12 = 0xFEFD
)

// epoch1 is the only epoch that is encrypted: there is no renegotiation.
const epoch1 = 1

// seqBits is the size of a sequence number; the epoch stands above it.
const seqBits = 48

// record is one record, in the bytes of its datagram.
type record struct {
	kind  byte
	epoch uint16
	seq   uint64
	whole []byte // with the header
	body  []byte
}

// parseRecord reports false for a record that is truncated or not of DTLS 1.0 or 1.2.
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

func putHeader(b []byte, kind byte, version, epoch uint16, seq uint64, n int) {
	b[0] = kind
	binary.BigEndian.PutUint16(b[1:], version)
	binary.BigEndian.PutUint64(b[3:], uint64(epoch)<<seqBits|seq)
	binary.BigEndian.PutUint16(b[11:], uint16(n))
}

func appendPlain(dst []byte, kind byte, version uint16, seq uint64, body []byte) []byte {
	var header [headerLen]byte
	putHeader(header[:], kind, version, 0, seq, len(body))
	return append(append(dst, header[:]...), body...)
}

// The anti-replay window of RFC 6347 4.1.2.6, without a lock.
const (
	blockBits    = 4 // a block covers 16 sequence numbers
	blockSize    = 1 << blockBits
	windowBlocks = 16
	// windowSize is how far behind the newest record a record is always accepted. One
	// further behind is accepted if its block was not reused.
	windowSize = (windowBlocks - 1) * blockSize
)

// window records which sequence numbers were received. The word at index block
// modulo windowBlocks holds the newest block of that index, and a bit for each of
// its numbers: number of the block <<16 | bits. Numbers of an older block are
// rejected, so none is accepted twice. Any goroutine may use it.
type window [windowBlocks]atomic.Uint64

// hasSeen lets replayed records be dropped before they are decrypted.
func (w *window) hasSeen(seq uint64) bool {
	block, bit := seq>>blockBits, uint64(1)<<(seq%blockSize)
	word := w[block%windowBlocks].Load()
	newest := word >> blockSize
	return newest > block || newest == block && word&bit != 0
}

func (w *window) next() (n uint64) {
	for i := range w {
		word := w[i].Load()
		if accepted := word & (1<<blockSize - 1); accepted != 0 {
			n = max(n, word>>blockSize<<blockBits+uint64(bits.Len64(accepted)))
		}
	}
	return n
}

// take marks the number of an authentic record. It reports false if that was accepted
// before or is too old.
func (w *window) take(seq uint64) bool {
	block, bit := seq>>blockBits, uint64(1)<<(seq%blockSize)
	at := &w[block%windowBlocks]
	for {
		word := at.Load()
		newest := word >> blockSize
		next := block<<blockSize | bit
		switch {
		case newest > block:
			return false
		case newest == block:
			if word&bit != 0 {
				return false
			}
			next |= word
		}
		if at.CompareAndSwap(word, next) {
			return true
		}
	}
}

// suite is a cipher suite with a pre-shared key alone and AES-GCM, RFC 5487.
type suite struct {
	id     uint16
	keyLen int
	hash   func() hash.Hash
}

var suites = [...]suite{
	{0x00A8, 16, sha256.New},    // TLS_PSK_WITH_AES_128_GCM_SHA256
	{0x00A9, 32, sha512.New384}, // TLS_PSK_WITH_AES_256_GCM_SHA384
}

func chooseSuite(h *hello) *suite {
	for i := range suites {
		if h.offers(suites[i].id) {
			return &suites[i]
		}
	}
	return nil
}

func suiteByID(id uint16) *suite {
	for i := range suites {
		if suites[i].id == id {
			return &suites[i]
		}
	}
	return nil
}

const verifyLen = 12

type secrets struct {
	suite  *suite
	master []byte
	in     direction // records of the client
	out    direction
}

// derive derives the secrets. transcript is the hash of all messages up to the
// ClientKeyExchange; it goes into the master secret if extended (RFC 7627).
func derive(s *suite, key *proto.Key, client, server []byte, extended bool, transcript []byte) (secrets, error) {
	premaster := prf.PSKPreMasterSecret(key[:])
	var master []byte
	var err error
	if extended {
		master, err = prf.ExtendedMasterSecret(premaster, transcript, s.hash)
	} else {
		master, err = prf.MasterSecret(premaster, client, server, s.hash)
	}
	if err != nil {
		return secrets{}, err
	}
	k, err := prf.GenerateEncryptionKeys(master, client, server, 0, s.keyLen, saltLen, s.hash)
	if err != nil {
		return secrets{}, err
	}
	out := secrets{suite: s, master: master}
	if out.in, err = newDirection(k.ClientWriteKey, k.ClientWriteIV); err != nil {
		return secrets{}, err
	}
	out.out, err = newDirection(k.ServerWriteKey, k.ServerWriteIV)
	return out, err
}

// verifyData returns the content of a Finished. label is "client finished" or
// "server finished", transcript the hash of all messages before it.
func (s *secrets) verifyData(label string, transcript []byte) ([]byte, error) {
	return prf.PHash(s.master, append([]byte(label), transcript...), verifyLen, s.suite.hash)
}

// direction is the cipher of one direction. It is immutable.
type direction struct {
	aead cipher.AEAD
	salt [saltLen]byte
}

func newDirection(key, salt []byte) (direction, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return direction{}, err
	}
	aead, err := cipher.NewGCM(block)
	return direction{aead: aead, salt: [saltLen]byte(salt)}, err
}

// session is an established session. Fields that are not atomic are set before it is
// published in the table, or have the owner that is named below.
type session struct {
	serial uint64
	id     proto.AllocationID
	from   endpoint.Endpoint
	in     direction
	out    direction
	window window
	// minReceived is the smallest sequence number that may be accepted: the
	// previous process may have accepted smaller ones.
	minReceived uint64
	stored      *reservation // nil: the session is not in the session file

	sent         atomic.Uint64 // the next sequence number in epoch 1
	lastReceived atomic.Int64  // the time of the last authentic record, of Records.clock
	ended        atomic.Bool   // it stays in the table until the next sweep
	// Whether and when, since the start of Records, a ClientHello was received from the
	// source after the last authentic record.
	helloPending atomic.Bool
	helloTime    atomic.Int64

	// Written under the table's lock, but unbindable, which is set before.
	bySource atomic.Pointer[session] // chains of the table
	bySerial atomic.Pointer[session]
	bound    atomic.Bool // an allocation was bound to the session at the last look
	// unbindable: its allocation had ended at the handshake, or never existed. The session
	// is there for ERROR 4, the answer to a BIND.
	unbindable bool
	// the session ends at this time of Records.clock unless bound; or boundBefore or resumed
	bindBy  atomic.Int64
	unbound *evict.Item[endpoint.Endpoint, *session] // nil: bound

	// The rest is owned by the worker of the source's prefix.

	plain    uint64 // the next sequence number in epoch 0
	finished []byte // our Finished, which may have to be sent again
	credit   int    // bytes of handshake datagrams from the source since our last answer
}

// scratch is the buffer for the additional data of one record. The data is passed
// through an interface, so it cannot be on the stack.
type scratch [aadLen]byte

// open decrypts a record of epoch 1 in place and overwrites parts of its header. The
// caller checks the replay window.
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

// sealRoom is how much larger than its message the buffer for a record must be.
// The additional data is built behind the record, so that it needs no allocation.
const sealRoom = sealedLen + aadLen

// maxMessage is of RFC 5246 6.2.1.
const maxMessage = 1 << 14

// seal appends a record of epoch 1 to dst, by any goroutine. It reports false if msg is longer
// than maxMessage, or the next of 2^48 sequence numbers cannot be reserved.
func (s *session) seal(dst []byte, kind byte, msg []byte) ([]byte, bool) {
	if len(msg) > maxMessage {
		return dst, false
	}
	seq := s.sent.Add(1) - 1
	if seq >= 1<<seqBits {
		s.sent.Add(^uint64(0))
		return dst, false
	}
	if s.stored != nil && !s.stored.reserveSent(seq) {
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
	copy(b[headerLen-saltLen:], s.out.salt[:])
	binary.BigEndian.PutUint64(b[headerLen:], epoch1<<seqBits|seq)
	s.out.aead.Seal(b[headerLen+nonceLen:headerLen+nonceLen], b[headerLen-saltLen:headerLen+nonceLen], msg, aad)
	putHeader(b, kind, version12, epoch1, seq, end-headerLen)
	return dst[:at+end], true
}
