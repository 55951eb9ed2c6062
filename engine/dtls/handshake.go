package dtls

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/ferryrelay/ferry/proto"
)

// Types of handshake messages, RFC 5246 7.4 and RFC 6347 4.3.2.
const (
	msgClientHello        = 1
	msgServerHello        = 2
	msgHelloVerifyRequest = 3
	msgServerHelloDone    = 14
	msgClientKeyExchange  = 16
	msgFinished           = 20
)

const messageHeaderLen = 12

// message is a handshake message or a fragment of one, in the bytes that were parsed.
type message struct {
	kind   byte
	size   int // of the whole message
	seq    uint16
	offset int
	body   []byte // the fragment
}

func (m *message) whole() bool { return m.offset == 0 && len(m.body) == m.size }

// parseMessage reports false for a truncated message or a fragment that exceeds its size.
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

// appendMessage appends a message as the transcript has it, even if it came in fragments.
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

// Numbers in a ClientHello, RFC 5246, 5746 and 7627.
const (
	extExtendedMasterSecret = 23
	extRenegotiationInfo    = 0xFF01
	suiteRenegotiationInfo  = 0x00FF
	randomLen               = 32
)

type hello struct {
	random         []byte
	cookie         []byte
	suites         []byte // two bytes each
	extendedMaster bool
	renegotiation  bool   // the client supports RFC 5746
	before, after  []byte // the bytes around the cookie, without extensions
}

// parseHello reports false for anything but a ClientHello of DTLS 1.2 or later.
func parseHello(b []byte) (h hello, ok bool) {
	if len(b) < 2+randomLen || b[0] != 0xFE || b[1] > 0xFD {
		return hello{}, false
	}
	h.random = b[2 : 2+randomLen]
	rest := b[2+randomLen:]
	session, rest, ok := vector8(rest)
	if !ok || len(session) > 32 {
		return hello{}, false
	}
	h.before = b[:len(b)-len(rest)]
	if h.cookie, rest, ok = vector8(rest); !ok {
		return hello{}, false
	}
	h.after = rest
	if h.suites, rest, ok = vector16(rest); !ok || len(h.suites) == 0 || len(h.suites)%2 != 0 {
		return hello{}, false
	}
	compression, rest, ok := vector8(rest)
	if !ok || !slices.Contains(compression, 0) {
		return hello{}, false
	}
	h.after = h.after[:len(h.after)-len(rest)]
	h.renegotiation = h.offers(suiteRenegotiationInfo)
	return h, len(rest) == 0 || h.parseExtensions(rest)
}

func isFirstHello(pkt []byte) bool {
	const session = headerLen + messageHeaderLen + 2 + randomLen // where the session id begins
	if len(pkt) <= session || pkt[0] != typeHandshake || pkt[headerLen] != msgClientHello {
		return false
	}
	cookie := session + 1 + int(pkt[session])
	return cookie < len(pkt) && pkt[cookie] == 0
}

func (h *hello) parseExtensions(b []byte) bool {
	all, rest, ok := vector16(b)
	if !ok || len(rest) != 0 {
		return false
	}
	for len(all) > 0 {
		if len(all) < 2 {
			return false
		}
		kind := binary.BigEndian.Uint16(all)
		var data []byte
		if data, all, ok = vector16(all[2:]); !ok {
			return false
		}
		switch kind {
		case extExtendedMasterSecret:
			h.extendedMaster = true
			ok = len(data) == 0
		case extRenegotiationInfo:
			h.renegotiation = true
			ok = len(data) == 1 && data[0] == 0
		}
		if !ok {
			return false
		}
	}
	return true
}

func (h *hello) offers(suite uint16) bool {
	for s := h.suites; len(s) >= 2; s = s[2:] {
		if binary.BigEndian.Uint16(s) == suite {
			return true
		}
	}
	return false
}

func vector8(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 1 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

func vector16(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return nil, nil, false
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:n], b[n:], true
}

// appendHelloVerify appends a HelloVerifyRequest: 44 bytes, where the shortest
// ClientHello has 67. Sequence number and version are as RFC 6347 4.2.1 requires.
func appendHelloVerify(dst []byte, recordSeq uint64, messageSeq uint16, cookie []byte) []byte {
	body := make([]byte, 0, messageHeaderLen+3+cookieLen)
	body = appendMessageHeader(body, msgHelloVerifyRequest, messageSeq, 3+len(cookie))
	body = binary.BigEndian.AppendUint16(body, version10)
	body = append(append(body, byte(len(cookie))), cookie...)
	return appendPlain(dst, typeHandshake, version10, recordSeq, body)
}

func answerLen(h *hello) int {
	n := headerLen + messageHeaderLen + 2 + randomLen + 1 + 2 + 1 + messageHeaderLen
	if h.extendedMaster || h.renegotiation {
		n += 2
	}
	if h.extendedMaster {
		n += 4
	}
	if h.renegotiation {
		n += 5
	}
	return n
}

// appendServerFlight appends the messages ServerHello and ServerHelloDone, in one
// record to save 13 bytes. The session id is empty, so sessions cannot be resumed by
// id. There is no ServerKeyExchange, since there is no identity hint (RFC 4279 2).
func appendServerFlight(dst []byte, h *hello, suite *suite, seq uint16, random []byte) []byte {
	body := make([]byte, 0, 64)
	body = binary.BigEndian.AppendUint16(body, version12)
	body = append(body, random...)
	body = append(body, 0)
	body = binary.BigEndian.AppendUint16(body, suite.id)
	body = append(body, 0)
	body = appendExtensions(body, h)
	dst = appendMessage(dst, msgServerHello, seq, body)
	return appendMessageHeader(dst, msgServerHelloDone, seq+1, 0)
}

func appendExtensions(body []byte, h *hello) []byte {
	if !h.extendedMaster && !h.renegotiation {
		return body
	}
	at := len(body)
	body = append(body, 0, 0)
	if h.extendedMaster {
		body = binary.BigEndian.AppendUint16(body, extExtendedMasterSecret)
		body = append(body, 0, 0)
	}
	if h.renegotiation {
		body = binary.BigEndian.AppendUint16(body, extRenegotiationInfo)
		body = append(body, 0, 1, 0)
	}
	binary.BigEndian.PutUint16(body[at:], uint16(len(body)-at-2))
	return body
}

// parseIdentity parses a PSK identity: the 16 bytes of the allocation's id, as real
// clients send it, or its text in upper or lower case, with or without hyphens.
func parseIdentity(b []byte) (id proto.AllocationID, ok bool) {
	switch len(b) {
	case len(proto.AllocationID{}):
		copy(id[:], b)
		return id, true
	case 36:
		var digits [32]byte
		n := 0
		for i, x := range b {
			if i == 8 || i == 13 || i == 18 || i == 23 {
				if x != '-' {
					return proto.AllocationID{}, false
				}
				continue
			}
			digits[n] = x
			n++
		}
		return parseHex(digits[:])
	case 32:
		return parseHex(b)
	}
	return proto.AllocationID{}, false
}

func parseHex(b []byte) (id proto.AllocationID, ok bool) {
	if _, err := hex.Decode(id[:], b); err != nil {
		return proto.AllocationID{}, false
	}
	return id, true
}
