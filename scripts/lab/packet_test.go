package lab

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestChecksums uses the header of RFC 1071's usual worked example, and checks
// that the words of every packet with its checksums add up to ffff.
func TestChecksums(t *testing.T) {
	header := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := ^fold(sum(header)); got != 0xb861 {
		t.Errorf("checksum %04x, want b861", got)
	}
	from, to := netip.MustParseAddrPort("198.18.1.2:3456"), netip.MustParseAddrPort("203.0.113.77:7777")
	for n := range 64 {
		payload := bytes.Repeat([]byte{0xDA}, n)
		p := AppendIPv4UDP(nil, from, to, payload)
		check := func() {
			t.Helper()
			udp := p[ipHeaderLen:]
			if fold(sum(p[:ipHeaderLen])) != 0xffff || fold(sum(p[12:20])+protocolUDP+uint64(len(udp))+sum(udp)) != 0xffff {
				t.Errorf("%d bytes: checksums are wrong: %x", n, p)
			}
		}
		check()
		if !bytes.Equal(p[rawOverhead:], payload) || int(binary.BigEndian.Uint16(p[2:])) != len(p) || int(binary.BigEndian.Uint16(p[24:])) != n+8 {
			t.Errorf("%d bytes: packet %x", n, p)
		}
		SetSource(p, netip.MustParseAddrPort("198.19.255.254:65535"))
		check()
	}
}
