package proto

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
)

// Sizes of BIND, in bytes.
const (
	// MaxConnectionData is the largest connection data, because its length
	// is one byte. Real clients always send 255, padded with zeros at the end.
	MaxConnectionData = 255
	// macLen is the size of an HMAC-SHA256.
	macLen = 32

	bindData = HeaderLen + 1 /* accept mode */ + 2 /* nonce */ + 1 /* length */

	// bindOverhead is the size of a BIND without connection data.
	bindOverhead = bindData + macLen
	// maxBindLen is the size of every BIND that a real client sends.
	maxBindLen = bindOverhead + MaxConnectionData
)

const errConnectionData = "proto: connection data is longer than 255 bytes"

// Bind asks the relay to bind an allocation to the endpoint that sent the datagram.
// The relay answers with BindReceived.
type Bind struct {
	AcceptMode     uint8    // byte 4; real clients send 0 (AUTO); not checked here
	Nonce          uint16   // bytes 5-6, little-endian, contrary to the published text
	ConnectionData []byte   // length in byte 7, data from byte 8; at most 255 bytes; aliases the packet
	MAC            [32]byte // the last 32 bytes: HMAC-SHA256 of all bytes before them; see Signer
}

// ParseBind parses a BIND of exactly 40 bytes plus the connection data, whose length
// is byte 7. It does not check the MAC; see [Signer.Verify].
func ParseBind(pkt []byte) (Bind, error) {
	wrong := headerMismatch(pkt, TypeBind)
	if wrong != HeaderLen || len(pkt) < bindOverhead || len(pkt) != bindOverhead+int(pkt[7]) {
		return Bind{}, headerErrors[wrong]
	}
	mac := len(pkt) - macLen
	return Bind{
		AcceptMode:     pkt[4],
		Nonce:          binary.LittleEndian.Uint16(pkt[5:]),
		ConnectionData: pkt[bindData:mac:mac],
		MAC:            [macLen]byte(pkt[mac:]),
	}, nil
}

// Append appends the encoded message to dst, with the MAC of m; [Signer.Append]
// computes one. It panics if ConnectionData is longer than MaxConnectionData.
func (m Bind) Append(dst []byte) []byte {
	dst = m.appendUnsigned(dst)
	return append(dst, m.MAC[:]...)
}

func (m Bind) appendUnsigned(dst []byte) []byte {
	if len(m.ConnectionData) > MaxConnectionData {
		panic(errConnectionData)
	}
	dst = appendHeader(dst, TypeBind)
	dst = append(dst, m.AcceptMode)
	dst = binary.LittleEndian.AppendUint16(dst, m.Nonce)
	dst = append(dst, uint8(len(m.ConnectionData)))
	return append(dst, m.ConnectionData...)
}

// String describes the message in one line, without connection data and MAC, which
// together authorize a BIND.
func (m Bind) String() string {
	return fmt.Sprintf("BIND mode=%d nonce=%d data=%dB", m.AcceptMode, m.Nonce, len(m.ConnectionData))
}

// bindReceivedLen is the size of BIND_RECEIVED in bytes: a bare header.
const bindReceivedLen = HeaderLen

// BindReceived is the relay's answer to a valid BIND.
type BindReceived struct{}

// ParseBindReceived parses a BIND_RECEIVED of exactly 4 bytes.
func ParseBindReceived(pkt []byte) (BindReceived, error) {
	wrong := headerMismatch(pkt, TypeBindReceived)
	if wrong != HeaderLen || len(pkt) != bindReceivedLen {
		return BindReceived{}, headerErrors[wrong]
	}
	return BindReceived{}, nil
}

// Append appends the encoded message to dst.
func (BindReceived) Append(dst []byte) []byte { return appendHeader(dst, TypeBindReceived) }

// String describes the message in one line.
func (BindReceived) String() string { return "BIND_RECEIVED" }

// keyLen is the size of a key in bytes, the block size of SHA-256, so that HMAC
// neither hashes nor pads the key. Real clients reject any other size.
const keyLen = 64

const redacted = "[redacted]"

// Key is the secret with which a client binds its allocation. The HTTP API returns
// it in base64; it is never sent over this protocol.
//
// A Key prints as "[redacted]" in fmt, slog and every user of encoding.TextMarshaler,
// but for an unexported struct field, which should be a *Key, since fmt calls no methods
// of it, and for %p and %w, which go vet reports.
type Key [64]byte

// Format writes "[redacted]" for every verb, %x and %d included.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns "[redacted]", so that a Key in a JSON document or a log record
// by mistake is not published. To write the bytes, use key[:].
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// This does not compile unless a key has the size of a SHA-256 block.
var _ [0]struct{} = [keyLen - sha256.BlockSize]struct{}{}

// The pads of HMAC (RFC 2104, section 2).
const (
	innerPad = 0x36
	outerPad = 0x5c
)

// Signer computes and checks the MAC of BIND: HMAC-SHA256 over all bytes before the
// MAC. Unlike crypto/hmac it does not allocate for each key.
//
// The zero value is ready to use. The first call allocates a hash that later calls
// reuse. A Signer must not be used concurrently.
type Signer struct {
	hash hash.Hash
	pad  [sha256.BlockSize]byte // key XOR innerPad or outerPad; zero between calls
	sum  [sha256.Size]byte
}

// Append appends b to dst, signed with key; b.MAC is ignored. It panics if
// b.ConnectionData is longer than MaxConnectionData.
func (s *Signer) Append(dst []byte, b Bind, key *Key) []byte {
	start := len(dst)
	dst = b.appendUnsigned(dst)
	return append(dst, s.mac(dst[start:], key)...)
}

// Verify reports whether the last 32 bytes of pkt are the MAC of the bytes before
// them, in constant time. pkt is a datagram that ParseBind has accepted; Verify
// returns false for one that is shorter than the smallest BIND.
func (s *Signer) Verify(pkt []byte, key *Key) bool {
	if len(pkt) < bindOverhead {
		return false
	}
	end := len(pkt) - macLen
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
