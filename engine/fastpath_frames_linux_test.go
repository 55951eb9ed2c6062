//go:build linux && amd64 && !sockportable

package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

type fastDatagram struct {
	from    netip.AddrPort
	to      netip.AddrPort
	ep      endpoint.Endpoint // of the sender, as its socket reports it
	pkt     []byte
	frame   []byte
	ifindex int
	// irregular says what of the frame only the kernel's stack handles.
	irregular string
}

func (f *fastWorld) next() *fastDatagram {
	tab := f.rig.shared.table
	joiner, _ := tab.At(f.all[6+f.rand.IntN(len(f.all)-6)])
	host, _ := tab.At(joiner.Link)
	if f.rand.IntN(20) == 0 || host.Handle == 0 {
		host, _ = tab.At(f.all[f.rand.IntN(len(f.all))])
	}
	sender, peer := joiner, host
	if f.rand.IntN(2) == 0 {
		sender, peer = host, joiner
	}
	size := f.rand.IntN(200)
	if f.rand.IntN(4) == 0 {
		size = f.rand.IntN(1434)
	}
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(f.rand.Uint32())
	}
	d := &fastDatagram{ep: sender.Endpoint, ifindex: loopback}
	d.pkt = proto.Relay{From: sender.ID, To: peer.ID, Payload: content}.Append(nil)
	if k := sender.Endpoint.Kind(); k != endpoint.KindUDP4 && k != endpoint.KindUDP6 {
		d.ep = endpoint.UDP(f.address4(5000), 0, 0)
	}
	d.from = d.ep.AddrPort()
	localAddr, ok := fastLocalAddrs[[2]int{int(d.ep.Listener()), int(d.ep.Local())}]
	if !ok { // The address of a local that is not known: any.
		localAddr = netip.MustParseAddrPort("198.51.100.9:7778")
	}
	d.to = localAddr
	f.mutate(d)
	d.frame = appendFrame(nil, d.from, d.to, d.pkt)
	f.mutateFrame(d)
	return d
}

// mutate changes what the worker sees as well.
func (f *fastWorld) mutate(d *fastDatagram) {
	switch f.rand.IntN(40) {
	case 0:
		d.pkt[f.rand.IntN(4)] ^= 1 << f.rand.IntN(8)
	case 1:
		d.pkt[4+f.rand.IntN(16)] ^= 1 << f.rand.IntN(8)
	case 2:
		d.pkt[20+f.rand.IntN(16)] ^= 1 << f.rand.IntN(8)
	case 3:
		d.pkt[36+f.rand.IntN(2)] ^= 1 << f.rand.IntN(8)
	case 4:
		d.pkt = d.pkt[:f.rand.IntN(len(d.pkt))]
	case 5:
		d.pkt = append(d.pkt, 7)
	case 6:
		copy(d.pkt[20:36], d.pkt[4:20])
	case 7:
		d.from = netip.AddrPortFrom(d.from.Addr(), d.from.Port()+1)
		d.ep = endpoint.UDP(d.from, d.ep.Local(), d.ep.Listener())
	case 8:
		d.from = netip.AddrPortFrom(d.from.Addr().Next(), d.from.Port())
		d.ep = endpoint.UDP(d.from, d.ep.Local(), d.ep.Listener())
	case 9: // to another address of the relay, if it has one
		for at, localAddr := range fastLocalAddrs {
			if at[0] == int(d.ep.Listener()) && at[1] != int(d.ep.Local()) {
				d.to = localAddr
				d.ep = endpoint.UDP(d.from, uint16(at[1]), uint8(at[0]))
			}
		}
	case 10:
		tmp := bytes.Clone(d.pkt[4:20])
		copy(d.pkt[4:20], d.pkt[20:36])
		copy(d.pkt[20:36], tmp)
	case 11:
		d.pkt[3] = byte(f.rand.IntN(14))
	}
}

// mutateFrame changes what only the program sees.
func (f *fastWorld) mutateFrame(d *fastDatagram) {
	ip, v4 := d.frame[14:], d.from.Addr().Is4()
	header := 40
	if v4 {
		header = 20
	}
	udp := ip[header:]
	fix := func() {
		if v4 {
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip[:20]))
		}
	}
	_, known := fastLocalAddrs[[2]int{int(d.ep.Listener()), int(d.ep.Local())}]
	switch m := f.rand.IntN(40); {
	case m == 0 && known:
		d.irregular = "another interface"
		f.program.SetLocalAddr(d.ep.Listener(), d.ep.Local(), d.to, loopback+1, [6]byte{})
	case m == 1:
		d.irregular = "for another station"
		d.frame[5] = 9
	case m == 2:
		d.irregular = "no UDP checksum"
		udp[6], udp[7] = 0, 0
	case m == 3: // a wrong one stays wrong
		udp[6] ^= 1 << f.rand.IntN(8)
		if udp[6] == 0 && udp[7] == 0 {
			udp[7] = 1
		}
	case m == 4:
		d.irregular = "trailing bytes"
		d.frame = append(d.frame, 0, 0)
	case m == 5:
		d.irregular = "shorter than its length"
		d.frame = d.frame[:len(d.frame)-1]
	case m == 6:
		d.irregular = "length of UDP"
		binary.BigEndian.PutUint16(udp[4:], binary.BigEndian.Uint16(udp[4:])-1)
	case m == 7 && v4:
		d.irregular = "header checksum"
		ip[10] ^= 1 << f.rand.IntN(8)
	case m == 8 && v4:
		d.irregular = "fragment"
		binary.BigEndian.PutUint16(ip[6:], 1<<f.rand.IntN(14))
		fix()
	case m == 9 && v4: // the program sends without
		binary.BigEndian.PutUint16(ip[6:], 1<<14)
		fix()
	case m == 10 && v4:
		d.irregular = "options"
		ip[0] = 0x46
		fix()
	case m == 11:
		if v4 {
			ip[1], ip[8] = byte(f.rand.Uint32()), byte(f.rand.Uint32())
		} else {
			ip[0], ip[1], ip[7] = 0x60|byte(f.rand.IntN(16)), byte(f.rand.Uint32()), byte(f.rand.Uint32())
		}
		fix()
	case m == 12:
		d.irregular = "not UDP"
		if v4 {
			ip[9] = 6
		} else {
			ip[6] = 0
		}
		fix()
	case m == 13:
		d.irregular = "not IP"
		d.frame[12] = 0x81
	case m == 14:
		d.irregular = "version"
		ip[0] = ip[0]&15 | 5<<4
		fix()
	}
}

func appendFrame(b []byte, from, to netip.AddrPort, pkt []byte) []byte {
	b = append(b, make([]byte, 12)...)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(pkt)))
	udp = append(udp, 0, 0)
	udp = append(udp, pkt...)
	src, dst := from.Addr().AsSlice(), to.Addr().AsSlice()
	sum := ^checksum(uint32(len(udp))+17, src, dst, udp)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	if from.Addr().Is4() {
		b = append(b, 8, 0)
		ip := []byte{0x45, 0, 0, 0, 0xab, 0xcd, 0, 0, 57, 17, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
		ip = append(append(ip, src...), dst...)
		binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip))
		return append(append(b, ip...), udp...)
	}
	b = append(b, 0x86, 0xdd)
	ip := []byte{0x60, 0, 0, 0, 0, 0, 17, 57}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
	return append(append(append(append(b, ip...), src...), dst...), udp...)
}

// checksum is the sum in one's complement (RFC 1071) of the parts, each but the last of
// which has an even length.
func checksum(sum uint32, parts ...[]byte) uint16 {
	for _, p := range parts {
		for ; len(p) > 1; p = p[2:] {
			sum += uint32(binary.BigEndian.Uint16(p))
		}
		if len(p) == 1 {
			sum += uint32(p[0]) << 8
		}
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum>>16 + sum&0xffff)
}
