package benchrig

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
)

// Sizes of a record with AES-128-GCM (RFC 6347 4.1, RFC 5288 3).
const (
	recordHeaderLen = 13
	recordNonceLen  = 8
	recordSaltLen   = 4
	recordTagLen    = 16
	recordKeyLen    = 16
	recordOverhead  = recordHeaderLen + recordNonceLen + recordTagLen

	recordTypeData = 23
	recordEpoch1   = 1 << 48 // epoch 1, sequence number 0
	// firstRecord is above all numbers that the handshake may have used.
	firstRecord = 1000
)

// records makes and opens the records of a session in which we are the client. It
// does not look for replays: the generator sends each datagram once.
type records struct {
	in, out recordKeys
	seq     uint64
	aad     [recordHeaderLen]byte
	nonce   [recordSaltLen + recordNonceLen]byte
}

type recordKeys struct {
	aead cipher.AEAD
	salt [recordSaltLen]byte
}

var _ Cipher = (*records)(nil)

// dtlsState is the state of a session in pion (State.MarshalBinary); the names are
// pion's.
type dtlsState struct {
	LocalRandom, RemoteRandom [32]byte
	CipherSuiteID             uint16
	MasterSecret              []byte
}

// newRecords takes a session with AES-128-GCM and SHA-256 over from pion.
func newRecords(s *dtls.State) (*records, error) {
	blob, err := s.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("bench: DTLS: %w", err)
	}
	var e dtlsState
	if err := gob.NewDecoder(bytes.NewReader(blob)).Decode(&e); err != nil {
		return nil, fmt.Errorf("bench: DTLS: pion's state: %w", err)
	}
	switch dtls.CipherSuiteID(e.CipherSuiteID) {
	case dtls.TLS_PSK_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:
	default:
		return nil, fmt.Errorf("bench: DTLS: suite %#04x was negotiated", e.CipherSuiteID)
	}
	k, err := prf.GenerateEncryptionKeys(e.MasterSecret, e.LocalRandom[:], e.RemoteRandom[:], 0, recordKeyLen, recordSaltLen, sha256.New)
	if err != nil {
		return nil, fmt.Errorf("bench: DTLS: %w", err)
	}
	c := &records{seq: firstRecord}
	if c.out, err = newRecordKeys(k.ClientWriteKey, k.ClientWriteIV); err == nil {
		c.in, err = newRecordKeys(k.ServerWriteKey, k.ServerWriteIV)
	}
	return c, err
}

func newRecordKeys(key, salt []byte) (recordKeys, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return recordKeys{}, err
	}
	aead, err := cipher.NewGCM(block)
	return recordKeys{aead, [recordSaltLen]byte(salt)}, err
}

// Overhead is 37 bytes.
func (*records) Overhead() int { return recordOverhead }

// Seal appends the record with a message.
func (c *records) Seal(dst, msg []byte) []byte {
	at := recordEpoch1 | c.seq
	c.seq++
	dst = append(dst, recordTypeData, 0xFE, 0xFD)
	dst = binary.BigEndian.AppendUint64(dst, at)
	dst = binary.BigEndian.AppendUint16(dst, uint16(recordNonceLen+len(msg)+recordTagLen))
	dst = binary.BigEndian.AppendUint64(dst, at)
	binary.BigEndian.PutUint64(c.nonce[recordSaltLen:], at)
	copy(c.nonce[:], c.out.salt[:])
	return c.out.aead.Seal(dst, c.nonce[:], msg, c.additional(at, len(msg)))
}

// Open returns the message of a record, nil if it is none of this session's.
func (c *records) Open(pkt []byte) []byte {
	if len(pkt) < recordOverhead || pkt[0] != recordTypeData || int(binary.BigEndian.Uint16(pkt[11:])) != len(pkt)-recordHeaderLen {
		return nil
	}
	copy(c.nonce[:], c.in.salt[:])
	copy(c.nonce[recordSaltLen:], pkt[recordHeaderLen:])
	sealed := pkt[recordHeaderLen+recordNonceLen:]
	msg, err := c.in.aead.Open(sealed[:0], c.nonce[:], sealed, c.additional(binary.BigEndian.Uint64(pkt[3:]), len(sealed)-recordTagLen))
	if err != nil {
		return nil
	}
	return msg
}

func (c *records) additional(at uint64, n int) []byte {
	binary.BigEndian.PutUint64(c.aad[:], at)
	c.aad[8], c.aad[9], c.aad[10] = recordTypeData, 0xFE, 0xFD
	binary.BigEndian.PutUint16(c.aad[11:], uint16(n))
	return c.aad[:]
}
