package client

import (
	"crypto/rand"
	"encoding/binary"
)

// What is needed of DTLS 1.2 for its first round trip, RFC 6347 4.1 to 4.2.2.
const (
	dtlsHandshake    = 22
	dtlsVersion      = 0xFEFD
	dtlsHeader       = 13 // type, version, epoch and sequence number, length
	dtlsMessage      = 12 // type, length, number, offset and length of the fragment
	dtlsRandom       = 32
	clientHello      = 1
	helloVerify      = 3
	pskAES128GCM     = 0x00A8 // TLS_PSK_WITH_AES_128_GCM_SHA256, RFC 5487
	shortHelloBody   = 2 + dtlsRandom + 1 + 1 + 2 + 2 + 1 + 1
	shortHello       = dtlsHeader + dtlsMessage + shortHelloBody
	helloVerifyLeast = dtlsHeader + dtlsMessage + 3
)

// appendShortHello appends a datagram of 67 bytes with a ClientHello that has one
// cipher suite and no extensions. A ServerHello would be longer, so that a server
// that amplifies nothing asks for a cookie.
func appendShortHello(dst []byte, seq uint64) []byte {
	dst = append(dst, dtlsHandshake)
	dst = binary.BigEndian.AppendUint16(dst, dtlsVersion)
	dst = binary.BigEndian.AppendUint64(dst, seq)
	dst = binary.BigEndian.AppendUint16(dst, dtlsMessage+shortHelloBody)
	dst = append(dst, clientHello, 0, 0, shortHelloBody, 0, 0, 0, 0, 0, 0, 0, shortHelloBody)
	dst = binary.BigEndian.AppendUint16(dst, dtlsVersion)
	var random [dtlsRandom]byte
	rand.Read(random[:])
	dst = append(dst, random[:]...)
	dst = append(dst, 0, 0, 0, 2) // no session, no cookie, suites of two bytes
	dst = binary.BigEndian.AppendUint16(dst, pskAES128GCM)
	return append(dst, 1, 0) // no compression
}

// parseHelloVerify returns the sequence number of a HelloVerifyRequest, which is
// that of the hello it answers (RFC 6347 4.2.1).
func parseHelloVerify(b []byte) (seq uint64, ok bool) {
	if len(b) < helloVerifyLeast || b[0] != dtlsHandshake || b[dtlsHeader] != helloVerify {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[3:]), int(binary.BigEndian.Uint16(b[11:])) == len(b)-dtlsHeader
}
