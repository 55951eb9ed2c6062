//go:build (linux && sockportable) || darwin || dragonfly || freebsd || netbsd || openbsd

package sock

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	sendFlags = syscall.MSG_DONTWAIT
	truncFlag = syscall.MSG_TRUNC

	flags4 = ipv4.FlagDst | ipv4.FlagInterface
	flags6 = ipv6.FlagDst | ipv6.FlagInterface
)

type packetIO interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// newPacketIO also reports whether replies can leave from the address that the
// peer sent to. FreeBSD reports that address for IPv4 but x/net cannot set it.
func newPacketIO(conn *net.UDPConn, listen netip.Addr) (packetIO, bool) {
	if listen.Is4() {
		p := ipv4.NewPacketConn(conn)
		if !listen.IsUnspecified() {
			return p, true
		}
		settable := len(marshalControl(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)) > 0
		return p, settable && p.SetControlMessage(flags4, true) == nil
	}
	p := ipv6.NewPacketConn(conn)
	return p, !listen.IsUnspecified() || p.SetControlMessage(flags6, true) == nil
}

func controlSize(v4 bool) int {
	if v4 {
		return len(ipv4.NewControlMessage(flags4))
	}
	return len(ipv6.NewControlMessage(flags6))
}

func parseControl(oob []byte, v4 bool) (netip.Addr, uint32) {
	if v4 {
		var cm ipv4.ControlMessage
		if cm.Parse(oob) != nil {
			return netip.Addr{}, 0
		}
		ip, _ := netip.AddrFromSlice(cm.Dst)
		return ip.Unmap(), 0
	}
	var cm ipv6.ControlMessage
	if cm.Parse(oob) != nil {
		return netip.Addr{}, 0
	}
	ip, _ := netip.AddrFromSlice(cm.Dst)
	return ip, uint32(cm.IfIndex)
}

func marshalControl(src netip.Addr, zone uint32) []byte {
	if src.Is4() {
		return (&ipv4.ControlMessage{Src: src.AsSlice()}).Marshal()
	}
	return (&ipv6.ControlMessage{Src: src.AsSlice(), IfIndex: int(zone)}).Marshal()
}
