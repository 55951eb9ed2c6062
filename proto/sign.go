package proto

import (
	"crypto/sha256"
	"crypto/subtle"
	"hash"
)

// A key has the size of one SHA-256 block, so it is neither hashed nor padded.
var _ [0]struct{} = [KeyLen - sha256.BlockSize]struct{}{}

// The pads of HMAC (RFC 2104, section 2).
const (
	innerPad = 0x36
	outerPad = 0x5c
)

// Signer computes and checks the MAC of BIND: HMAC-SHA256 over all bytes
// before the MAC, header and nonce included. It exists because crypto/hmac
// allocates for each key, and a relay sees another key with each BIND.
//
// The zero value is ready. Its first call allocates the hash that later calls
// reuse. A Signer belongs to one goroutine at a time; each worker has its own.
type Signer struct {
	hash hash.Hash
	pad  [sha256.BlockSize]byte // key mixed with a pad; zero between calls
	sum  [sha256.Size]byte
}

// Append appends b to dst, signed with key; b.MAC is ignored. It panics when
// b.ConnectionData is longer than MaxConnectionData.
func (s *Signer) Append(dst []byte, b Bind, key *Key) []byte {
	start := len(dst)
	dst = b.appendUnsigned(dst)
	return append(dst, s.mac(dst[start:], key)...)
}

// Verify reports whether the last 32 bytes of pkt are the MAC of the bytes
// before them, in a time that does not depend on how many bytes are right.
// pkt is a whole datagram that ParseBind accepted; anything shorter than the
// smallest BIND is false.
func (s *Signer) Verify(pkt []byte, key *Key) bool {
	if len(pkt) < BindOverhead {
		return false
	}
	end := len(pkt) - MACLen
	return subtle.ConstantTimeCompare(s.mac(pkt[:end], key), pkt[end:]) == 1
}

// mac returns the HMAC of msg, in memory that the next call overwrites.
func (s *Signer) mac(msg []byte, key *Key) []byte {
	if s.hash == nil {
		s.hash = sha256.New()
	}
	for i, b := range key {
		s.pad[i] = b ^ innerPad
	}
	s.hash.Reset()
	s.hash.Write(s.pad[:])
	s.hash.Write(msg)
	inner := s.hash.Sum(s.sum[:0])

	for i := range s.pad {
		s.pad[i] ^= innerPad ^ outerPad
	}
	s.hash.Reset()
	s.hash.Write(s.pad[:])
	s.hash.Write(inner)
	clear(s.pad[:])
	return s.hash.Sum(s.sum[:0])
}
