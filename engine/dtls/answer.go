package dtls

import "encoding/binary"

// appendHelloVerify appends the datagram with a HelloVerifyRequest: 44 bytes,
// where the shortest ClientHello has 67. Its sequence number is that of the
// ClientHello and its version 1.0, as RFC 6347 4.2.1 asks of servers that
// remember nothing.
func appendHelloVerify(dst []byte, recordSeq uint64, messageSeq uint16, cookie []byte) []byte {
	body := make([]byte, 0, messageHeaderLen+3+cookieLen)
	body = appendMessageHeader(body, msgHelloVerifyRequest, messageSeq, 3+len(cookie))
	body = binary.BigEndian.AppendUint16(body, version10)
	body = append(append(body, byte(len(cookie))), cookie...)
	return appendPlain(dst, typeHandshake, version10, recordSeq, body)
}

// answerLen is the size of the datagram that answers a hello directly.
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

// appendServerFlight appends the messages ServerHello and ServerHelloDone, which
// travel in one record since that saves 13 bytes. There is no session id, so
// nothing to resume, and no ServerKeyExchange, since there is no hint to give
// (RFC 4279 2).
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
