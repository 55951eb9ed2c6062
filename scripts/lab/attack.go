package lab

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/ferryrelay/ferry/proto"
)

// AttackerReplyRange returns the prefix that contains every address of
// RandomSource and no address of a player. A Counter with this prefix counts
// the replies to attackers.
func AttackerReplyRange() netip.Prefix { return netip.MustParsePrefix("198.18.128.0/17") }

// RandomSource returns a random forged source: one of 32,512 addresses with a
// port from 1024.
func RandomSource(rng *rand.Rand) netip.AddrPort {
	n := rng.Uint32N(128 * 254)
	addr := netip.AddrFrom4([4]byte{198, 18, byte(128 + n/254), byte(1 + n%254)})
	return netip.AddrPortFrom(addr, uint16(1024+rng.UintN(1<<16-1024)))
}

// Messages returns one message of each type that clients send. Each message has
// the right size and random contents.
func Messages(rng *rand.Rand) [][]byte {
	id := func() (id proto.AllocationID) { fill(rng, id[:]); return id }
	data := make([]byte, proto.MaxConnectionData)
	fill(rng, data)
	bind := proto.Bind{Nonce: uint16(rng.Uint32()), ConnectionData: data}
	fill(rng, bind.MAC[:])
	return [][]byte{
		bind.Append(nil),
		proto.Ping{ID: id(), Number: 1}.Append(nil),
		proto.ConnectRequest{ID: id(), ConnectionData: data}.Append(nil),
		proto.Disconnect{From: id(), To: id()}.Append(nil),
		proto.Relay{From: id(), To: id(), Payload: data[:64]}.Append(nil),
		proto.Close{ID: id()}.Append(nil),
	}
}

// Malformed returns a malformed datagram: random bytes, a valid header with a
// random type, a truncated or extended message, or a message with another
// version.
func Malformed(rng *rand.Rand) []byte {
	all := Messages(rng)
	m := all[rng.IntN(len(all))]
	switch rng.IntN(5) {
	case 0:
		junk := make([]byte, rng.IntN(400))
		fill(rng, junk)
		return junk
	case 1:
		m[3] = byte(rng.Uint32())
		return m
	case 2:
		return m[:rng.IntN(len(m))]
	case 3:
		return append(m, make([]byte, 1+rng.IntN(200))...)
	default:
		m[2] = byte(1 + rng.IntN(255))
		return m
	}
}

func fill(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

const (
	ipHeaderLen  = 20 // without options
	udpHeaderLen = 8
	rawOverhead  = ipHeaderLen + udpHeaderLen
	protocolUDP  = 17
	hopLimit     = 64
)

// AppendIPv4UDP appends an IPv4 packet that contains a UDP datagram to dst,
// with both checksums (RFC 791, RFC 768). Both addresses are IPv4. It panics if
// the payload does not fit into a packet.
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
	setChecksums(dst[start:])
	return dst
}

// SetSource overwrites the source of a packet of AppendIPv4UDP and updates the
// checksums.
func SetSource(packet []byte, from netip.AddrPort) {
	src := from.Addr().As4()
	copy(packet[12:16], src[:])
	binary.BigEndian.PutUint16(packet[ipHeaderLen:], from.Port())
	setChecksums(packet)
}

// setChecksums computes the IPv4 and UDP checksums of a packet.
func setChecksums(p []byte) {
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^fold(sum(p[:ipHeaderLen])))
	udp := p[ipHeaderLen:]
	udp[6], udp[7] = 0, 0
	pseudo := sum(p[12:20]) + protocolUDP + uint64(len(udp))
	check := ^fold(pseudo + sum(udp))
	if check == 0 {
		check = 0xffff // Zero means that there is no checksum.
	}
	binary.BigEndian.PutUint16(udp[6:], check)
}

// sum adds up the 16-bit words of b; an odd last byte is the high byte of a
// word. It adds 32 bits at a time, since 2^16 is 1 modulo 2^16-1.
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

// fold reduces a sum to a 16-bit checksum.
func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Values of DTLS 1.2 (RFC 6347).
const (
	dtlsHandshake = 22
	dtlsVersion   = 0xFEFD
	clientHello   = 1
	dtlsRandomLen = 32
	// dtlsHeaders is the length of a record header and a handshake header.
	dtlsHeaders = 13 + 12
)

// ClientHello returns the ClientHello of a DTLS 1.2 client with a pre-shared
// key and without a cookie.
func ClientHello(random [dtlsRandomLen]byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, dtlsVersion)
	body = append(append(body, random[:]...), 0, 0)
	body = append(body, 0, 4, 0x00, 0xA8, 0x00, 0xA9) // both PSK suites with AES-GCM
	body = append(body, 1, 0)                         // no compression
	// Extended master secret, renegotiation info, and an unknown extension
	// that makes the hello as long as that of a real client.
	body = append(body, 0, 4+5+4+30, 0, 23, 0, 0, 0xFF, 0x01, 0, 1, 0, 0x77, 0x77, 0, 30)
	body = append(body, make([]byte, 30)...)
	return plainRecord(append([]byte{clientHello, 0, 0, byte(len(body)), 0, 0, 0, 0, 0, 0, 0, byte(len(body))}, body...))
}

// plainRecord returns an unencrypted handshake record.
func plainRecord(message []byte) []byte {
	b := []byte{dtlsHandshake, dtlsVersion >> 8, dtlsVersion & 0xFF, 0, 0, 0, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(len(message)))
	return append(b, message...)
}

// HelloRandom returns a random value for ClientHello.
func HelloRandom(rng *rand.Rand) (r [dtlsRandomLen]byte) {
	fill(rng, r[:])
	return r
}

// JunkRecord returns a datagram with the header of a DTLS record and random
// contents that no key decrypts. Its type, epoch and length vary; some records
// are truncated.
func JunkRecord(rng *rand.Rand) []byte {
	b := make([]byte, 13+rng.IntN(200))
	fill(rng, b)
	b[0] = byte(20 + rng.IntN(6))
	binary.BigEndian.PutUint16(b[1:], dtlsVersion)
	binary.BigEndian.PutUint64(b[3:], uint64(rng.IntN(3))<<48|uint64(rng.IntN(4096)))
	binary.BigEndian.PutUint16(b[11:], uint16(len(b)-13+rng.IntN(20)/19))
	return b
}
