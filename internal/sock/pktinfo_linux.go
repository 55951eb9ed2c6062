//go:build linux && !sockportable

package sock

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The control message IP_PKTINFO holds the interface, the address to answer
// from and the address in the header (ip(7)); IPV6_PKTINFO holds the address
// and the interface (ipv6(7)). Numbers are in host order, addresses as on the
// wire. Only one kind is switched on per socket, so that it is always first.

const (
	cmsgLevelAt = unix.SizeofCmsghdr - 8
	cmsgTypeAt  = unix.SizeofCmsghdr - 4
)

func pktinfoLen(v4 bool) int {
	if v4 {
		return unix.SizeofInet4Pktinfo
	}
	return unix.SizeofInet6Pktinfo
}

func pktinfoType(v4 bool) (level, typ uint32) {
	if v4 {
		return unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	return unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
}

// parsePktinfo reads the local address out of the first n bytes of a control
// slot. It refuses addresses that cannot be the source of a reply.
func parsePktinfo(slot []byte, n int, v4 bool) (localAddr, bool) {
	level, typ := pktinfoType(v4)
	if n < unix.CmsgLen(pktinfoLen(v4)) ||
		binary.NativeEndian.Uint32(slot[cmsgLevelAt:]) != level ||
		binary.NativeEndian.Uint32(slot[cmsgTypeAt:]) != typ {
		return localAddr{}, false
	}
	data := slot[unix.CmsgLen(0):]
	if v4 {
		a := localAddr{lo: uint64(binary.BigEndian.Uint32(data[4:8]))}
		return a, a.lo != 0
	}
	a := localAddr{hi: binary.BigEndian.Uint64(data[:8]), lo: binary.BigEndian.Uint64(data[8:16])}
	switch {
	case a.hi>>56 == 0xff: // multicast
		return localAddr{}, false
	case a.hi>>54 == 0xfe80>>6: // link-local: an address only together with its interface
		a.zone = binary.NativeEndian.Uint32(data[16:20])
	}
	return a, true
}

// initPktinfo writes the header of a control message into a slot.
func initPktinfo(slot []byte, v4 bool) {
	size := unix.CmsgLen(pktinfoLen(v4))
	if cmsgLevelAt == 8 {
		binary.NativeEndian.PutUint64(slot, uint64(size))
	} else {
		binary.NativeEndian.PutUint32(slot, uint32(size))
	}
	level, typ := pktinfoType(v4)
	binary.NativeEndian.PutUint32(slot[cmsgLevelAt:], level)
	binary.NativeEndian.PutUint32(slot[cmsgTypeAt:], typ)
}

// putPktinfo writes the source address into a slot that initPktinfo prepared.
func putPktinfo(slot []byte, a localAddr, v4 bool) {
	data := slot[unix.CmsgLen(0):]
	if v4 {
		binary.BigEndian.PutUint32(data[4:8], uint32(a.lo))
		return
	}
	binary.BigEndian.PutUint64(data[:8], a.hi)
	binary.BigEndian.PutUint64(data[8:16], a.lo)
	binary.NativeEndian.PutUint32(data[16:20], a.zone)
}
