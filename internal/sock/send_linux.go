//go:build linux && !sockportable

package sock

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"golang.org/x/sys/unix"
)

// SendBatch is a list of datagrams for one Send. Datagrams to one endpoint
// leave in order; those of one size may leave as one message, see
// merge_linux.go. Headers, iovecs, names and control messages are wired once in
// NewSendBatch. One goroutine owns it.
type SendBatch struct {
	hdrs     []mmsghdr    // by message
	iovs     []unix.Iovec // by message: its datagram while it is alone
	names    []byte
	ctrls    []byte
	n        int // messages for the kernel
	refused  int // datagrams of a kind that the socket cannot reach
	nameLen  int
	infoLen  int // control bytes of the source address; 0 unless the group listens on a wildcard
	ctrlLen  int // control bytes in all
	v4       bool
	listener uint8
	locals   *locals
	*merger  // nil: no merging
}

// NewSendBatch allocates a batch for at most max datagrams; values outside 1 to
// MaxSendBatch are moved to the nearer bound.
func (c *Conn) NewSendBatch(max int) *SendBatch {
	max = clampSendBatch(max)
	b := &SendBatch{
		hdrs: make([]mmsghdr, max), iovs: make([]unix.Iovec, max),
		nameLen: unix.SizeofSockaddrInet6, v4: c.sock.v4,
		listener: c.group.cfg.Listener, locals: c.group.locals,
	}
	if b.v4 {
		b.nameLen = unix.SizeofSockaddrInet4
	}
	b.names = make([]byte, max*b.nameLen)
	if c.group.wildcard() && c.group.caps.LocalAddress {
		b.infoLen = unix.CmsgSpace(pktinfoLen(b.v4))
	}
	b.ctrlLen = b.infoLen + unix.CmsgSpace(segmentLen)
	b.ctrls = make([]byte, max*b.ctrlLen)
	if c.segments.Load() > 0 {
		b.merger = newMerger(&c.segments, max)
	}
	for i := range b.hdrs {
		b.wire(i)
	}
	return b
}

func (b *SendBatch) wire(i int) {
	name := b.names[i*b.nameLen : (i+1)*b.nameLen]
	family := uint16(unix.AF_INET6)
	if b.v4 {
		family = unix.AF_INET
	}
	binary.NativeEndian.PutUint16(name, family)
	h := &b.hdrs[i].hdr
	h.Name = &name[0]
	h.Namelen = uint32(b.nameLen)
	ctrl := b.ctrls[i*b.ctrlLen : (i+1)*b.ctrlLen]
	if b.infoLen > 0 {
		initPktinfo(ctrl, b.v4)
	}
	initSegment(ctrl[b.infoLen:])
	b.alone(i)
}

// alone wires message i for one datagram.
func (b *SendBatch) alone(i int) {
	h := &b.hdrs[i].hdr
	h.Iov = &b.iovs[i]
	h.SetIovlen(1)
	h.Control = &b.ctrls[i*b.ctrlLen]
	h.SetControllen(0)
}

// Add appends a datagram; false means that the batch is full and nothing was
// added. pkt is borrowed until Send or Reset returns. An endpoint of another
// kind than the socket's is taken and counted as failed by Send.
func (b *SendBatch) Add(to endpoint.Endpoint, pkt []byte) bool {
	if b.Len() >= len(b.hdrs) {
		return false
	}
	if kind := to.Kind(); kind != endpoint.KindUDP4 && kind != endpoint.KindUDP6 || (kind == endpoint.KindUDP4) != b.v4 {
		b.refused++
		return true
	}
	if b.merger != nil && b.place(to, pkt, b.n) {
		return true
	}
	i := b.n
	name := b.names[i*b.nameLen : (i+1)*b.nameLen]
	binary.BigEndian.PutUint16(name[2:4], uint16(to.Tail))
	if b.v4 {
		binary.BigEndian.PutUint32(name[4:8], uint32(to.Lo))
	} else {
		binary.BigEndian.PutUint64(name[8:16], to.Hi)
		binary.BigEndian.PutUint64(name[16:24], to.Lo)
	}
	b.iovs[i].Base = base(pkt)
	b.iovs[i].SetLen(len(pkt))
	if b.infoLen > 0 {
		b.setSource(i, to)
	}
	b.n++
	return true
}

// setSource makes message i leave from the local address the peer sent to.
func (b *SendBatch) setSource(i int, to endpoint.Endpoint) {
	h := &b.hdrs[i].hdr
	a, ok := b.locals.at(to.Local())
	if !ok || to.Listener() != b.listener {
		h.SetControllen(0)
		return
	}
	putPktinfo(b.ctrls[i*b.ctrlLen:], a, b.v4)
	h.SetControllen(b.infoLen)
}

// seal wires the messages that are runs. It comes after the last Add.
func (b *SendBatch) seal() {
	if b.merger == nil || b.joined == 0 {
		return
	}
	used := 0
	for i := range b.runs[:b.n] {
		r := &b.runs[i]
		if r.count == 1 {
			continue
		}
		parts := append(b.gather[used:used:used+int(r.count)], b.iovs[i])
		for d, left := r.head, r.count; left > 1; d, left = b.next[d], left-1 {
			parts = append(parts, b.parts[d])
		}
		used += int(r.count)
		b.together(i, parts, int(r.segment))
	}
}

// together wires message i for a run.
func (b *SendBatch) together(i int, parts []unix.Iovec, segment int) {
	h := &b.hdrs[i].hdr
	h.Iov = &parts[0]
	h.SetIovlen(len(parts))
	ctrl := b.ctrls[i*b.ctrlLen : (i+1)*b.ctrlLen]
	putSegment(ctrl[b.infoLen:], segment)
	if h.Controllen == 0 {
		h.Control = &ctrl[b.infoLen]
		h.SetControllen(unix.CmsgSpace(segmentLen))
	} else {
		h.SetControllen(b.ctrlLen)
	}
}

// part makes message i datagram k of its run, alone, and reports false when
// there is no such datagram. Send falls back to it for a run that was refused,
// from k = 0 on.
func (b *SendBatch) part(i, k int) bool {
	r := &b.runs[i]
	if k >= int(r.count) {
		return false
	}
	if k > 0 {
		d := r.head
		for ; k > 1; k-- {
			d = b.next[d]
		}
		b.iovs[i] = b.parts[d]
	}
	b.alone(i)
	if b.infoLen > 0 {
		b.setSource(i, r.to)
	}
	return true
}

// partSize returns the size of the datagram that part made message i.
func (b *SendBatch) partSize(i int) int { return int(b.iovs[i].Len) }

// Len returns the number of datagrams.
func (b *SendBatch) Len() int {
	if b.merger != nil {
		return b.n + b.joined + b.refused
	}
	return b.n + b.refused
}

// Reset drops the datagrams and gives the borrowed packets back.
func (b *SendBatch) Reset() {
	merged := b.merger != nil && b.joined > 0
	for i := range b.iovs[:b.n] {
		b.iovs[i].Base = nil
		if merged && b.runs[i].count > 1 {
			b.alone(i)
		}
	}
	if b.merger != nil {
		b.merger.reset()
	}
	b.n, b.refused = 0, 0
}

// size returns the payload bytes of message i, and count its datagrams.
func (b *SendBatch) size(i int) int {
	if n := b.count(i); n > 1 {
		return int(b.runs[i].bytes)
	}
	return int(b.iovs[i].Len)
}

func (b *SendBatch) count(i int) int {
	if b.merger == nil || b.joined == 0 {
		return 1
	}
	return int(b.runs[i].count)
}

// segment returns the segment size of message i.
func (b *SendBatch) segment(i int) int { return int(b.runs[i].segment) }
