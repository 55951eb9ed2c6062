package turn

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Message types (RFC 8656, 17): a method with the bits of its class.
const (
	typeBinding     uint16 = 0x001
	typeAllocate    uint16 = 0x003
	typeRefresh     uint16 = 0x004
	typeChannelBind uint16 = 0x009

	classSuccess uint16 = 0x100
	classError   uint16 = 0x110
	classMask    uint16 = 0x110
)

// Attributes (RFC 8489, 14 and RFC 8656, 18).
const (
	attrUsername           uint16 = 0x0006
	attrIntegrity          uint16 = 0x0008
	attrErrorCode          uint16 = 0x0009
	attrChannelNumber      uint16 = 0x000C
	attrLifetime           uint16 = 0x000D
	attrXORPeerAddress     uint16 = 0x0012
	attrRealm              uint16 = 0x0014
	attrNonce              uint16 = 0x0015
	attrXORRelayedAddress  uint16 = 0x0016
	attrRequestedTransport uint16 = 0x0019
)

const (
	headerLen    = 20
	attrHeader   = 4
	integrityLen = 20
	magic        = 0x2112A442
	familyIPv4   = 1
	protocolUDP  = 17
)

// transaction identifies the request of an answer.
type transaction [12]byte

// errSTUN is the error of a datagram that is no valid STUN message.
var errSTUN = errors.New("turn: no STUN message")

// appendHeader begins a message; seal or finish ends it.
func appendHeader(b []byte, typ uint16, id transaction) []byte {
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, magic)
	return append(b, id[:]...)
}

// appendAttr adds an attribute and pads it with zeros to a multiple of 4 bytes.
func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// appendAddr adds an IPv4 address in the XOR form (RFC 8489, 14.2).
func appendAddr(b []byte, typ uint16, addr netip.AddrPort) []byte {
	ip := addr.Addr().As4()
	value := []byte{0, familyIPv4}
	value = binary.BigEndian.AppendUint16(value, addr.Port()^(magic>>16))
	value = binary.BigEndian.AppendUint32(value, binary.BigEndian.Uint32(ip[:])^magic)
	return appendAttr(b, typ, value)
}

// finish writes the length of the message b, which has no integrity.
func finish(b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-headerLen))
	return b
}

// seal adds MESSAGE-INTEGRITY, with the length as if it were there already.
func seal(b, key []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-headerLen+attrHeader+integrityLen))
	mac := hmac.New(sha1.New, key)
	mac.Write(b)
	return appendAttr(b, attrIntegrity, mac.Sum(nil))
}

// longTermKey is the key of long-term credentials (RFC 8489, 9.2.2).
func longTermKey(user, realm, password string) []byte {
	sum := md5.Sum([]byte(user + ":" + realm + ":" + password))
	return sum[:]
}

// reply has the attributes of a message that the dialect needs.
type reply struct {
	typ     uint16
	id      transaction
	code    int // of an error, else 0
	realm   string
	nonce   []byte // aliases the datagram
	relayed netip.AddrPort
}

// method is the type without its class.
func (r *reply) method() uint16 { return r.typ &^ classMask }

// parse reads a STUN message. Its integrity is not checked: the other side is
// a process of ours on loopback.
func parse(pkt []byte) (reply, error) {
	if len(pkt) < headerLen || pkt[0] >= 0x40 || binary.BigEndian.Uint32(pkt[4:]) != magic ||
		int(binary.BigEndian.Uint16(pkt[2:])) != len(pkt)-headerLen {
		return reply{}, errSTUN
	}
	r := reply{typ: binary.BigEndian.Uint16(pkt), id: transaction(pkt[8:headerLen])}
	for rest := pkt[headerLen:]; len(rest) > 0; {
		if len(rest) < attrHeader {
			return reply{}, errSTUN
		}
		size := int(binary.BigEndian.Uint16(rest[2:]))
		padded := attrHeader + size + -size&3
		if len(rest) < padded {
			return reply{}, errSTUN
		}
		if err := r.read(binary.BigEndian.Uint16(rest), rest[attrHeader:attrHeader+size]); err != nil {
			return reply{}, err
		}
		rest = rest[padded:]
	}
	return r, nil
}

func (r *reply) read(typ uint16, value []byte) error {
	switch typ {
	case attrErrorCode:
		if len(value) < 4 {
			return fmt.Errorf("%w: short ERROR-CODE", errSTUN)
		}
		r.code = int(value[2]&7)*100 + int(value[3])
	case attrRealm:
		r.realm = string(value)
	case attrNonce:
		r.nonce = value
	case attrXORRelayedAddress:
		if len(value) != 8 || value[1] != familyIPv4 {
			return fmt.Errorf("%w: relayed address is not IPv4", errSTUN)
		}
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(value[4:])^magic)
		r.relayed = netip.AddrPortFrom(netip.AddrFrom4(ip), binary.BigEndian.Uint16(value[2:])^(magic>>16))
	}
	return nil
}
