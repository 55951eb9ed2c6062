//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// entryBase identifies entry i of a batch by its first byte.
func entryBase(b *SendBatch, i int) *byte { return b.iovs[i].Base }

// fill does what the kernel does with slots 0 to len(pkts)-1 of an IPv4 socket.
func fill(b *RecvBatch, from netip.AddrPort, pkts [][]byte) int {
	b.rearm()
	ip := from.Addr().As4()
	for i, pkt := range pkts {
		name := b.names[i*b.nameLen:]
		binary.BigEndian.PutUint16(name[2:], from.Port())
		copy(name[4:8], ip[:])
		b.hdrs[i].len = uint32(copy(b.buf[i*SlotSize:(i+1)*SlotSize], pkt))
		b.hdrs[i].hdr.Flags = 0
		if len(pkt) > SlotSize {
			b.hdrs[i].hdr.Flags = unix.MSG_TRUNC
		}
	}
	b.used = len(pkts)
	return len(pkts)
}
