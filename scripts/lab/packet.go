package lab

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipHeaderLen  = 20 // without options
	udpHeaderLen = 8
	rawOverhead  = ipHeaderLen + udpHeaderLen
	protocolUDP  = 17
	hopLimit     = 64
)

// AppendIPv4UDP appends an IPv4 packet with a UDP datagram in it to dst, with
// both checksums (RFC 791, RFC 768). The addresses are IPv4; the source may be
// anybody's. It panics when the payload does not fit into a packet.
func AppendIPv4UDP(dst []byte, from, to netip.AddrPort, payload []byte) []byte {
	total := rawOverhead + len(payload)
	if total > 1<<16-1 {
		panic("lab: payload does not fit into an IPv4 packet")
	}
	start := len(dst)
	src4, dst4 := from.Addr().As4(), to.Addr().As4()
	dst = append(dst, 0x45, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(total))
	dst = append(dst, 0, 0, 0, 0, hopLimit, protocolUDP, 0, 0)
	dst = append(dst, src4[:]...)
	dst = append(dst, dst4[:]...)
	dst = binary.BigEndian.AppendUint16(dst, from.Port())
	dst = binary.BigEndian.AppendUint16(dst, to.Port())
	dst = binary.BigEndian.AppendUint16(dst, uint16(total-ipHeaderLen))
	dst = append(dst, 0, 0)
	dst = append(dst, payload...)
	sign(dst[start:])
	return dst
}

// SetSource writes another source into a packet of AppendIPv4UDP.
func SetSource(packet []byte, from netip.AddrPort) {
	src := from.Addr().As4()
	copy(packet[12:16], src[:])
	binary.BigEndian.PutUint16(packet[ipHeaderLen:], from.Port())
	sign(packet)
}

// sign computes both checksums of a packet.
func sign(p []byte) {
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^fold(sum(p[:ipHeaderLen])))
	udp := p[ipHeaderLen:]
	udp[6], udp[7] = 0, 0
	pseudo := sum(p[12:20]) + protocolUDP + uint64(len(udp))
	check := ^fold(pseudo + sum(udp))
	if check == 0 {
		check = 0xffff // Zero would say: none.
	}
	binary.BigEndian.PutUint16(udp[6:], check)
}

// sum adds up 16-bit words, an odd byte at the end counting as the high one.
// Words of 32 bits may be added in their place: 2^16 is 1 modulo 2^16-1.
func sum(b []byte) (s uint64) {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

// fold reduces a sum to the 16 bits of a checksum.
func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
