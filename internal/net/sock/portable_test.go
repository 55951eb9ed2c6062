//go:build !linux || sockportable

package sock

import (
	"net"
	"net/netip"
	"testing"
)

// disableTimeout does nothing: the portable build sets the time-out for each call.
func disableTimeout(*testing.T, *Conn) {}

// entryBase identifies entry i of a batch by its first byte.
func entryBase(b *SendBatch, i int) *byte { return &b.ms[i].Buffers[0][0] }

// fill fills as the platform does slots 0 to len(pkts)-1 of an IPv4 socket.
func fill(b *RecvBatch, from netip.AddrPort, pkts [][]byte) int {
	for i, pkt := range pkts {
		m := &b.ms[i]
		m.Addr, m.Flags = net.UDPAddrFromAddrPort(from), 0
		m.N = copy(m.Buffers[0], pkt)
		if len(pkt) > SlotSize {
			m.Flags = truncFlag
		}
	}
	return len(pkts)
}
