//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package sock

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
)

const (
	sendFlags = 0
	truncFlag = 1 << 30

	// wsaMsgSize is WSAEMSGSIZE, with which Windows reports a datagram that
	// was longer than the buffer.
	wsaMsgSize = syscall.Errno(10040)
)

// packetIO moves one datagram per call, for platforms on which x/net has no
// batches: Windows above all.
type packetIO struct{ conn *net.UDPConn }

// newPacketIO also reports whether replies leave from the address that the peer
// sent to, which they do only when that is the sole address listened on.
func newPacketIO(conn *net.UDPConn, listen netip.Addr) (packetIO, bool) {
	return packetIO{conn}, !listen.IsUnspecified()
}

func (p packetIO) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	m := &ms[0]
	n, _, _, from, err := p.conn.ReadMsgUDPAddrPort(m.Buffers[0], nil)
	m.N, m.NN, m.Flags, m.Addr = n, 0, 0, nil
	switch {
	case errors.Is(err, wsaMsgSize):
		m.Flags = truncFlag // Package net returns neither where it comes from nor, always, what is in it.
	case err != nil:
		return 0, err
	default:
		m.Addr = net.UDPAddrFromAddrPort(from)
	}
	return 1, nil
}

func (p packetIO) WriteBatch(ms []ipv4.Message, _ int) (int, error) {
	m := &ms[0]
	to, ok := m.Addr.(*net.UDPAddr)
	if !ok {
		return 0, ErrAddress
	}
	if _, _, err := p.conn.WriteMsgUDPAddrPort(m.Buffers[0], nil, to.AddrPort()); err != nil {
		return 0, err
	}
	return 1, nil
}

func controlSize(bool) int { return 0 }

func parseControl([]byte, bool) (netip.Addr, uint32) { return netip.Addr{}, 0 }

func marshalControl(netip.Addr, uint32) []byte { return nil }
