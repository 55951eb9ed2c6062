package traffic

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
)

// packet is a UDP datagram of a capture, whose content may be cut off.
type packet struct {
	at       int64 // ns since 1970
	from, to netip.AddrPort
	size     int // of the content as it was sent
	content  []byte
}

type network struct {
	link  uint32 // LINKTYPE_
	units uint64 // of time per second
}

var errDamaged = errors.New("the capture is damaged, or ends within a packet")

// Magic numbers of pcap with times in microseconds and nanoseconds.
const magicMicro, magicNano = 0xA1B2C3D4, 0xA1B23C4D

func captureOrder(data []byte) binary.ByteOrder {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if len(data) < 24 {
			break
		}
		if magic := order.Uint32(data); magic == magicMicro || magic == magicNano || isSection(data) && order.Uint32(data[8:]) == 0x1A2B3C4D {
			return order
		}
	}
	return nil
}

func isSection(data []byte) bool { return binary.BigEndian.Uint32(data) == 0x0A0D0D0A }

// readCapture returns the UDP datagrams of a pcap or pcapng file. Of a datagram in fragments
// of IPv4 it has the first fragment, with the size of all; those of IPv6 it leaves out.
func readCapture(data []byte) (all []packet, err error) {
	order := captureOrder(data)
	if isSection(data) {
		return readSections(data, order)
	}
	n := network{order.Uint32(data[20:]) & 0xFFFF, 1e6}
	if order.Uint32(data) == magicNano {
		n.units = 1e9
	}
	for data = data[24:]; len(data) >= 16; {
		size := order.Uint32(data[8:])
		if uint64(size) > uint64(len(data)-16) {
			return nil, errDamaged
		}
		all = n.add(all, uint64(order.Uint32(data))*n.units+uint64(order.Uint32(data[4:])), data[16:16+size])
		data = data[16+size:]
	}
	if len(data) > 0 {
		return nil, errDamaged
	}
	return all, nil
}

func readSections(data []byte, order binary.ByteOrder) (all []packet, err error) {
	var networks []network
	for len(data) >= 12 {
		if isSection(data) {
			if order, networks = captureOrder(data), nil; order == nil {
				return nil, errDamaged
			}
		}
		kind, size := order.Uint32(data), order.Uint32(data[4:])
		if size < 12 || size%4 != 0 || uint64(size) > uint64(len(data)) {
			return nil, errDamaged
		}
		body := data[8 : size-4]
		data = data[size:]
		switch {
		case kind == 1 && len(body) >= 8: // interface description
			networks = append(networks, network{uint32(order.Uint16(body)), timeUnits(order, body[8:])})
		case kind == 6 && len(body) >= 20: // enhanced packet
			i, captured := order.Uint32(body), order.Uint32(body[12:])
			if uint64(i) >= uint64(len(networks)) || uint64(captured) > uint64(len(body)-20) {
				return nil, errDamaged
			}
			all = networks[i].add(all, uint64(order.Uint32(body[4:]))<<32|uint64(order.Uint32(body[8:])), body[20:20+captured])
		case kind == 2 || kind == 3: // packet (obsolete), simple packet
			return nil, errors.New("the capture has packets without a time, or of an old kind; convert it with editcap")
		}
	}
	if len(data) > 0 {
		return nil, errDamaged
	}
	return all, nil
}

// timeUnits returns the units of time per second of an interface from its options (if_tsresol).
func timeUnits(order binary.ByteOrder, options []byte) uint64 {
	units := uint64(1e6)
	for len(options) >= 4 {
		code, size := order.Uint16(options), int(order.Uint16(options[2:]))
		if code == 0 || size > len(options)-4 {
			break
		}
		if value := options[4 : 4+size]; code == 9 && size == 1 && value[0]&0x80 != 0 {
			units = 1 << (value[0] & 0x3F)
		} else if code == 9 && size == 1 {
			units = 1
			for range min(value[0], 19) {
				units *= 10
			}
		}
		options = options[min(4+(size+3)&^3, len(options)):]
	}
	return units
}

func (n network) add(all []packet, at uint64, frame []byte) []packet {
	p, ok := parseFrame(n.link, frame)
	if !ok {
		return all
	}
	high, low := bits.Mul64(at%n.units, 1e9)
	part, _ := bits.Div64(high, low, n.units)
	p.at = int64(at/n.units*1e9 + part)
	return append(all, p)
}

func parseFrame(link uint32, b []byte) (packet, bool) {
	header := map[uint32]int{0: 4, 1: 14, 12: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20} // NULL, Ethernet, raw, LOOP, SLL, SLL2
	skip, known := header[link]
	for link == 1 && len(b) >= skip+4 && (binary.BigEndian.Uint16(b[skip-2:]) == 0x8100 || binary.BigEndian.Uint16(b[skip-2:]) == 0x88A8) {
		skip += 4 // VLAN
	}
	if !known || len(b) < skip+1 {
		return packet{}, false
	}
	b = b[skip:]
	var from, to netip.Addr
	switch {
	case b[0]>>4 == 4 && len(b) >= 20 && b[9] == 17 && binary.BigEndian.Uint16(b[6:])&0x1FFF == 0 && len(b) >= int(b[0]&15)*4:
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[int(b[0]&15)*4:]
	case b[0]>>4 == 6 && len(b) >= 40 && b[6] == 17:
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	default:
		return packet{}, false
	}
	if len(b) < 8 || binary.BigEndian.Uint16(b[4:]) < 8 {
		return packet{}, false
	}
	size := int(binary.BigEndian.Uint16(b[4:])) - 8
	return packet{
		from: netip.AddrPortFrom(from, binary.BigEndian.Uint16(b)), to: netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:])),
		size: size, content: b[8:min(8+size, len(b))],
	}, true
}
