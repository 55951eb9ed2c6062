package proto

import (
	"encoding/binary"
	"fmt"
)

// Sizes of BIND, in bytes.
const (
	// MaxConnectionData is the largest connection data, because its length
	// is one byte. Real clients always send 255, padded with zeros at the end.
	MaxConnectionData = 255
	// MACLen is the size of an HMAC-SHA256.
	MACLen = 32

	bindData = HeaderLen + 1 /* accept mode */ + 2 /* nonce */ + 1 /* length */

	// BindOverhead is the size of a BIND without connection data.
	BindOverhead = bindData + MACLen
	// MaxBindLen is the size of every BIND that a real client sends.
	MaxBindLen = BindOverhead + MaxConnectionData
)

// errConnectionData is the panic of an encoder whose caller broke the limit.
const errConnectionData = "proto: connection data is longer than 255 bytes"

// Bind asks the relay to tie an allocation to the endpoint that the datagram
// came from. It is answered with BindReceived.
type Bind struct {
	AcceptMode     uint8        // byte 4; real clients know only 0 (AUTO); not checked here
	Nonce          uint16       // bytes 5-6, little-endian, unlike what the published text says
	ConnectionData []byte       // length in byte 7, data from byte 8; at most 255 bytes; aliases the packet
	MAC            [MACLen]byte // the last 32 bytes: HMAC-SHA256 of all bytes before them; see Signer
}

// ParseBind reads a BIND of exactly 40 bytes plus the connection data whose
// length byte 7 gives. It does not check the MAC: that is Signer.Verify.
// Errors: ErrShort, ErrSignature, ErrVersion, ErrType, ErrLength.
func ParseBind(pkt []byte) (Bind, error) {
	wrong := firstWrong(pkt, TypeBind)
	if wrong != HeaderLen || len(pkt) < BindOverhead || len(pkt) != BindOverhead+int(pkt[7]) {
		return Bind{}, reasons[wrong]
	}
	mac := len(pkt) - MACLen
	return Bind{
		AcceptMode:     pkt[4],
		Nonce:          binary.LittleEndian.Uint16(pkt[5:]),
		ConnectionData: pkt[bindData:mac:mac],
		MAC:            [MACLen]byte(pkt[mac:]),
	}, nil
}

// Len returns the size of the encoded message, 40 to 295 bytes.
func (m Bind) Len() int { return BindOverhead + len(m.ConnectionData) }

// Append appends the encoded message, MAC as it stands, to dst. To compute
// the MAC use Signer.Append. It panics when ConnectionData is longer than
// MaxConnectionData.
func (m Bind) Append(dst []byte) []byte {
	dst = m.appendUnsigned(dst)
	return append(dst, m.MAC[:]...)
}

// appendUnsigned appends the part that the MAC covers.
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

// String describes the message in one line. It leaves connection data and MAC
// out: together they are what binds an allocation.
func (m Bind) String() string {
	return fmt.Sprintf("BIND mode=%d nonce=%d data=%dB", m.AcceptMode, m.Nonce, len(m.ConnectionData))
}
