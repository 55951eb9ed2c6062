package dtls

import "encoding/binary"

// Numbers in a ClientHello, RFC 5246, 5746 and 7627.
const (
	extExtendedMasterSecret = 23
	extRenegotiationInfo    = 0xFF01
	suiteRenegotiationInfo  = 0x00FF
	randomLen               = 32
)

// hello is what a ClientHello says; it lends bytes.
type hello struct {
	random         []byte
	cookie         []byte
	suites         []byte // two bytes each
	extendedMaster bool
	renegotiation  bool   // it wants to hear that we know of RFC 5746
	before, after  []byte // what surrounds the cookie, without extensions
}

// parseHello parses the body of a ClientHello for DTLS 1.2 or later, which is
// answered with 1.2. It reports false for everything else.
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
	if !ok || !contains(compression, 0) {
		return hello{}, false
	}
	h.after = h.after[:len(h.after)-len(rest)]
	h.renegotiation = h.offers(suiteRenegotiationInfo)
	return h, len(rest) == 0 || h.parseExtensions(rest)
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

// offers reports whether the client has a cipher suite.
func (h *hello) offers(suite uint16) bool {
	for s := h.suites; len(s) >= 2; s = s[2:] {
		if binary.BigEndian.Uint16(s) == suite {
			return true
		}
	}
	return false
}

// vector8 takes a vector with a length of one byte off b.
func vector8(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 1 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

// vector16 takes a vector with a length of two bytes off b.
func vector16(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return nil, nil, false
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:n], b[n:], true
}

func contains(b []byte, x byte) bool {
	for _, y := range b {
		if x == y {
			return true
		}
	}
	return false
}
