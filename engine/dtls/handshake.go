package dtls

import "encoding/binary"

// Types of handshake messages, RFC 5246 7.4 and RFC 6347 4.3.2.
const (
	msgClientHello        = 1
	msgServerHello        = 2
	msgHelloVerifyRequest = 3
	msgServerHelloDone    = 14
	msgClientKeyExchange  = 16
	msgFinished           = 20
)

// messageHeaderLen is the size of a handshake message's header: type, length,
// sequence number, fragment offset and fragment length.
const messageHeaderLen = 12

// message is a handshake message or a fragment of one; it lends bytes.
type message struct {
	kind   byte
	size   int // of the whole message
	seq    uint16
	offset int
	body   []byte // the fragment
}

// whole reports whether the fragment is all of the message.
func (m *message) whole() bool { return m.offset == 0 && len(m.body) == m.size }

// parseMessage takes the first handshake message off the body of a record. It
// reports false when it is cut short or reaches beyond its own size.
func parseMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < messageHeaderLen {
		return message{}, nil, false
	}
	m = message{kind: b[0], size: uint24(b[1:]), seq: binary.BigEndian.Uint16(b[4:]), offset: uint24(b[6:])}
	n := uint24(b[9:])
	if n > len(b)-messageHeaderLen || m.offset+n > m.size {
		return message{}, nil, false
	}
	m.body = b[messageHeaderLen : messageHeaderLen+n]
	return m, b[messageHeaderLen+n:], true
}

// appendMessage appends an unfragmented message. The transcript has each
// message in this form, however it came.
func appendMessage(dst []byte, kind byte, seq uint16, body []byte) []byte {
	dst = appendMessageHeader(dst, kind, seq, len(body))
	return append(dst, body...)
}

func appendMessageHeader(dst []byte, kind byte, seq uint16, n int) []byte {
	dst = appendUint24(append(dst, kind), n)
	dst = binary.BigEndian.AppendUint16(dst, seq)
	return appendUint24(append(dst, 0, 0, 0), n)
}

func uint24(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

func appendUint24(dst []byte, n int) []byte { return append(dst, byte(n>>16), byte(n>>8), byte(n)) }
