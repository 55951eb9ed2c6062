package secure

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"fmt"

	"github.com/pion/dtls/v3"
	"github.com/pion/dtls/v3/pkg/crypto/prf"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// Sizes of a record with AES-128-GCM (RFC 6347 4.1, RFC 5288 3).
const (
	headerLen = 13
	nonceLen  = 8
	saltLen   = 4
	tagLen    = 16
	keyLen    = 16
	overhead  = headerLen + nonceLen + tagLen

	typeData  = 23
	epochSeq1 = 1 << 48 // epoch 1, sequence number 0
	// firstSeq is above all numbers that the handshake may have used.
	firstSeq = 1000
)

// Cipher makes and opens the records of a session in which we are the client. It
// does not look for replays: the generator sends each datagram once.
type Cipher struct {
	in, out half
	seq     uint64
	aad     [headerLen]byte
	nonce   [saltLen + nonceLen]byte
}

// half is one direction.
type half struct {
	aead cipher.AEAD
	salt [saltLen]byte
}

var _ benchrig.Cipher = (*Cipher)(nil)

// exported is the state of a session in pion (State.MarshalBinary); the names are
// pion's.
type exported struct {
	LocalRandom, RemoteRandom [32]byte
	CipherSuiteID             uint16
	MasterSecret              []byte
}

// fromState takes a session over from pion. Its suite has to have AES-128-GCM and
// SHA-256.
func fromState(s *dtls.State) (*Cipher, error) {
	blob, err := s.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("secure: %w", err)
	}
	var e exported
	if err := gob.NewDecoder(bytes.NewReader(blob)).Decode(&e); err != nil {
		return nil, fmt.Errorf("secure: pion's state: %w", err)
	}
	switch dtls.CipherSuiteID(e.CipherSuiteID) {
	case dtls.TLS_PSK_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:
	default:
		return nil, fmt.Errorf("secure: suite %#04x was negotiated", e.CipherSuiteID)
	}
	k, err := prf.GenerateEncryptionKeys(e.MasterSecret, e.LocalRandom[:], e.RemoteRandom[:], 0, keyLen, saltLen, sha256.New)
	if err != nil {
		return nil, fmt.Errorf("secure: %w", err)
	}
	c := &Cipher{seq: firstSeq}
	if c.out, err = newHalf(k.ClientWriteKey, k.ClientWriteIV); err == nil {
		c.in, err = newHalf(k.ServerWriteKey, k.ServerWriteIV)
	}
	return c, err
}

func newHalf(key, salt []byte) (half, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return half{}, err
	}
	aead, err := cipher.NewGCM(block)
	return half{aead, [saltLen]byte(salt)}, err
}

// Overhead is 37 bytes.
func (*Cipher) Overhead() int { return overhead }

// Seal appends the record with a message.
func (c *Cipher) Seal(dst, msg []byte) []byte {
	at := epochSeq1 | c.seq
	c.seq++
	dst = append(dst, typeData, 0xFE, 0xFD)
	dst = binary.BigEndian.AppendUint64(dst, at)
	dst = binary.BigEndian.AppendUint16(dst, uint16(nonceLen+len(msg)+tagLen))
	dst = binary.BigEndian.AppendUint64(dst, at)
	binary.BigEndian.PutUint64(c.nonce[saltLen:], at)
	copy(c.nonce[:], c.out.salt[:])
	return c.out.aead.Seal(dst, c.nonce[:], msg, c.additional(at, len(msg)))
}

// Open returns the message of a record, nil if it is none of this session's.
func (c *Cipher) Open(pkt []byte) []byte {
	if len(pkt) < overhead || pkt[0] != typeData || int(binary.BigEndian.Uint16(pkt[11:])) != len(pkt)-headerLen {
		return nil
	}
	copy(c.nonce[:], c.in.salt[:])
	copy(c.nonce[saltLen:], pkt[headerLen:])
	sealed := pkt[headerLen+nonceLen:]
	msg, err := c.in.aead.Open(sealed[:0], c.nonce[:], sealed, c.additional(binary.BigEndian.Uint64(pkt[3:]), len(sealed)-tagLen))
	if err != nil {
		return nil
	}
	return msg
}

func (c *Cipher) additional(at uint64, n int) []byte {
	binary.BigEndian.PutUint64(c.aad[:], at)
	c.aad[8], c.aad[9], c.aad[10] = typeData, 0xFE, 0xFD
	binary.BigEndian.PutUint16(c.aad[11:], uint16(n))
	return c.aad[:]
}
