package lab

import (
	"encoding/binary"
	"math/rand/v2"
)

// Numbers of DTLS 1.2 (RFC 6347), as far as attackers use them.
const (
	dtlsAlert     = 21
	dtlsHandshake = 22
	dtlsData      = 23
	dtlsVersion   = 0xFEFD
	clientHello   = 1
	verifyRequest = 3
	dtlsRandomLen = 32
	// dtlsHeaders are those of a record and of a handshake message in it.
	dtlsHeaders = 13 + 12
)

// ClientHello returns the datagram by which a client of DTLS 1.2 with a
// pre-shared key begins. With a cookie it is the second one; the random of a
// client is the same in both.
func ClientHello(random [dtlsRandomLen]byte, cookie []byte) []byte {
	seq := byte(0)
	if len(cookie) > 0 {
		seq = 1
	}
	body := binary.BigEndian.AppendUint16(nil, dtlsVersion)
	body = append(append(body, random[:]...), 0, byte(len(cookie)))
	body = append(body, cookie...)
	body = append(body, 0, 4, 0x00, 0xA8, 0x00, 0xA9) // both PSK suites with AES-GCM
	body = append(body, 1, 0)                         // no compression
	// Extended master secret, renegotiation info, and an unknown one, by
	// which the hello is as long as those of real clients.
	body = append(body, 0, 4+5+4+30, 0, 23, 0, 0, 0xFF, 0x01, 0, 1, 0, 0x77, 0x77, 0, 30)
	body = append(body, make([]byte, 30)...)
	return plainRecord(seq, append([]byte{clientHello, 0, 0, byte(len(body)), 0, seq, 0, 0, 0, 0, 0, byte(len(body))}, body...))
}

// plainRecord is a record of the handshake before anything is encrypted.
func plainRecord(seq byte, message []byte) []byte {
	b := []byte{dtlsHandshake, dtlsVersion >> 8, dtlsVersion & 0xFF, 0, 0, 0, 0, 0, 0, 0, seq}
	b = binary.BigEndian.AppendUint16(b, uint16(len(message)))
	return append(b, message...)
}

// CookieIn returns the cookie that a server asks to be shown, nil if it is
// another datagram.
func CookieIn(b []byte) []byte {
	if len(b) < dtlsHeaders+3 || b[0] != dtlsHandshake || b[13] != verifyRequest {
		return nil
	}
	n := int(b[dtlsHeaders+2])
	if len(b) < dtlsHeaders+3+n {
		return nil
	}
	return b[dtlsHeaders+3 : dtlsHeaders+3+n]
}

// Random returns the random of a hello.
func Random(rng *rand.Rand) (r [dtlsRandomLen]byte) {
	fill(rng, r[:])
	return r
}

// JunkRecord returns what looks like a record of DTLS and is none that any key
// opens: of every type that a relay accepts, plain or encrypted, or cut short.
func JunkRecord(rng *rand.Rand) []byte {
	b := make([]byte, 13+rng.IntN(200))
	fill(rng, b)
	b[0] = byte(20 + rng.IntN(6))
	binary.BigEndian.PutUint16(b[1:], dtlsVersion)
	binary.BigEndian.PutUint64(b[3:], uint64(rng.IntN(3))<<48|uint64(rng.IntN(4096)))
	binary.BigEndian.PutUint16(b[11:], uint16(len(b)-13+rng.IntN(20)/19))
	return b
}
