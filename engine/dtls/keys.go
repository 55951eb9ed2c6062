package dtls

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"crypto/sha512"
	"hash"

	"github.com/ferryrelay/ferry/proto"
	"github.com/pion/dtls/v3/pkg/crypto/prf"
)

// suite is a cipher suite with a pre-shared key alone and AES-GCM, RFC 5487.
type suite struct {
	id     uint16
	keyLen int
	hash   func() hash.Hash
}

// suites, the preferred one first.
var suites = [...]suite{
	{0x00A8, 16, sha256.New},    // TLS_PSK_WITH_AES_128_GCM_SHA256
	{0x00A9, 32, sha512.New384}, // TLS_PSK_WITH_AES_256_GCM_SHA384
}

// choose returns the first of suites that a client has, or nil.
func choose(h *hello) *suite {
	for i := range suites {
		if h.offers(suites[i].id) {
			return &suites[i]
		}
	}
	return nil
}

// suiteOf returns the suite with that id, or nil.
func suiteOf(id uint16) *suite {
	for i := range suites {
		if suites[i].id == id {
			return &suites[i]
		}
	}
	return nil
}

// verifyLen is the size of the verify_data in a Finished.
const verifyLen = 12

// secrets are what both ends of a handshake know when it is over.
type secrets struct {
	suite  *suite
	master []byte
	in     direction // records of the client
	out    direction
}

// derive makes the secrets. transcript is the hash of all messages up to the
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

// verifyData is what a Finished says: label is "client finished" or "server
// finished", transcript the hash of all messages before it.
func (s *secrets) verifyData(label string, transcript []byte) ([]byte, error) {
	return prf.PHash(s.master, append([]byte(label), transcript...), verifyLen, s.suite.hash)
}

// direction is the cipher of one direction. It does not change.
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
