//go:build linux && !sockportable

package sock

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/sys/unix"
)

// RecvBatch is the memory for the datagrams of one Recv: slot i has a message
// header, an iovec, a name, room for a control message, and SlotSize bytes. All
// are wired once in NewRecvBatch. The goroutine that calls Recv owns it.
type RecvBatch struct {
	hdrs    []mmsghdr
	names   []byte
	buf     []byte
	used    int // slots the kernel wrote in the last call
	nameLen int
	ctrlLen int
	tail    uint64 // kind and listener of every endpoint
	errors  errorStreak
	v4      bool
	idle    bool // no datagram came for heldTimeout
	quiet   bool // nor for recvTimeout
	lastID  uint16
	last    localAddr // the local address seen last, lastID is its number
	locals  *locals
	ctrls   []byte // empty unless the group listens on a wildcard
	iovs    []unix.Iovec
	poll    [1]unix.PollFd
}

// NewRecvBatch allocates a batch of [Config].Batch slots for c.
func (c *Conn) NewRecvBatch() *RecvBatch {
	n := c.group.cfg.Batch
	b := &RecvBatch{
		hdrs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), buf: make([]byte, n*SlotSize),
		nameLen: unix.SizeofSockaddrInet6, v4: c.sock.v4, locals: c.group.locals,
	}
	kind := endpoint.KindUDP6
	if b.v4 {
		kind, b.nameLen = endpoint.KindUDP4, unix.SizeofSockaddrInet4
	}
	b.tail = uint64(kind)<<endpoint.KindShift | uint64(c.group.cfg.Listener)<<endpoint.ListenerShift
	b.names = make([]byte, n*b.nameLen)
	if c.group.wildcard() && c.group.caps.LocalAddress {
		b.ctrlLen = unix.CmsgSpace(pktinfoLen(b.v4))
		b.ctrls = make([]byte, n*b.ctrlLen)
	}
	for i := range b.hdrs {
		b.wire(i)
	}
	b.poll[0] = unix.PollFd{Fd: int32(c.sock.fd), Events: unix.POLLIN}
	return b
}

func (b *RecvBatch) wire(i int) {
	b.iovs[i].Base = &b.buf[i*SlotSize]
	b.iovs[i].SetLen(SlotSize)
	h := &b.hdrs[i].hdr
	h.Name = &b.names[i*b.nameLen]
	h.Namelen = uint32(b.nameLen)
	h.Iov = &b.iovs[i]
	h.SetIovlen(1)
	if b.ctrlLen > 0 {
		h.Control = &b.ctrls[i*b.ctrlLen]
		h.SetControllen(b.ctrlLen)
	}
}

// reset restores the lengths the kernel has overwritten, in the used slots only.
func (b *RecvBatch) reset() {
	for i := range b.hdrs[:b.used] {
		h := &b.hdrs[i].hdr
		h.Namelen = uint32(b.nameLen)
		h.SetControllen(b.ctrlLen)
	}
	b.used = 0
}

// At returns datagram i, 0 <= i < n of the last Recv. pkt lies in the batch: it
// may be changed and is valid until the next Recv; it is empty for an empty
// datagram. truncated says that the datagram was longer than SlotSize and its
// rest is lost. from is zero when the sender has no usable address.
func (b *RecvBatch) At(i int) (from endpoint.Endpoint, pkt []byte, truncated bool) {
	h := &b.hdrs[i]
	start := i * SlotSize
	end := start + int(min(h.len, SlotSize))
	pkt = b.buf[start:end:end]
	truncated = h.hdr.Flags&unix.MSG_TRUNC != 0
	if int(h.hdr.Namelen) != b.nameLen {
		return endpoint.Endpoint{}, pkt, truncated
	}
	name := b.names[i*b.nameLen : (i+1)*b.nameLen]
	tail := b.tail | uint64(binary.BigEndian.Uint16(name[2:4]))
	if b.ctrlLen > 0 {
		tail |= uint64(b.local(i)) << endpoint.LocalShift
	}
	if b.v4 {
		return endpoint.Endpoint{Hi: 0, Lo: uint64(binary.BigEndian.Uint32(name[4:8])), Tail: tail}, pkt, truncated
	}
	hi, lo := binary.BigEndian.Uint64(name[8:16]), binary.BigEndian.Uint64(name[16:24])
	if hi == 0 && lo>>32 == 0xffff {
		// A mapped address on an IPv6-only socket is forged and has no way back.
		return endpoint.Endpoint{}, pkt, truncated
	}
	return endpoint.Endpoint{Hi: hi, Lo: lo, Tail: tail}, pkt, truncated
}

func (b *RecvBatch) local(i int) uint16 {
	a, ok := parsePktinfo(b.ctrls[i*b.ctrlLen:(i+1)*b.ctrlLen], int(b.hdrs[i].hdr.Controllen), b.v4)
	if !ok {
		return 0
	}
	if a != b.last || b.lastID == 0 {
		b.last, b.lastID = a, b.locals.id(a)
	}
	return b.lastID
}

// SendBatch is a list of datagrams for one Send. Datagrams to one endpoint
// leave in order; those of one size may leave as one message, see
// merger. Headers, iovecs, names and control messages are wired once in
// NewSendBatch. One goroutine owns it.
type SendBatch struct {
	hdrs     []mmsghdr    // by message
	iovs     []unix.Iovec // by message: its datagram while it is alone
	names    []byte
	n        int     // messages for the kernel
	refused  int     // datagrams of a kind that the socket cannot reach
	merger   *merger // nil: no merging
	nameLen  int
	infoLen  int // control bytes of the source address; 0 unless the group listens on a wildcard
	v4       bool
	listener uint8
	locals   *locals
	ctrls    []byte
	ctrlLen  int // control bytes in all
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
	if c.segments.bytes.Load() > 0 {
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
	b.wireSingle(i)
}

func (b *SendBatch) wireSingle(i int) {
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
	if b.merger != nil && b.merger.merge(to, pkt, b.n) {
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

// wireRuns wires the messages that are runs. Send calls it after the last Add.
func (b *SendBatch) wireRuns() {
	m := b.merger
	if m == nil || m.joined == 0 {
		return
	}
	used := 0
	for i := range m.runs[:b.n] {
		r := &m.runs[i]
		if r.count == 1 {
			continue
		}
		parts := append(m.gather[used:used:used+int(r.count)], b.iovs[i])
		for d, left := r.head, r.count; left > 1; d, left = m.next[d], left-1 {
			parts = append(parts, m.parts[d])
		}
		used += int(r.count)
		b.wireRun(i, parts, int(r.segment))
	}
}

func (b *SendBatch) wireRun(i int, parts []unix.Iovec, segment int) {
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

// wirePart wires message i for datagram k of its run alone. Send falls back to it
// for a run that was refused, from k = 0 on.
func (b *SendBatch) wirePart(i, k int) {
	m := b.merger
	r := &m.runs[i]
	if k > 0 {
		d := r.head
		for ; k > 1; k-- {
			d = m.next[d]
		}
		b.iovs[i] = m.parts[d]
	}
	b.wireSingle(i)
	if b.infoLen > 0 {
		b.setSource(i, r.to)
	}
}

func (b *SendBatch) partSize(i int) int { return int(b.iovs[i].Len) }

// Len returns the number of datagrams.
func (b *SendBatch) Len() int {
	if b.merger != nil {
		return b.n + b.merger.joined + b.refused
	}
	return b.n + b.refused
}

// Reset drops the datagrams and gives the borrowed packets back.
func (b *SendBatch) Reset() {
	m := b.merger
	merged := m != nil && m.joined > 0
	for i := range b.iovs[:b.n] {
		b.iovs[i].Base = nil
		if merged && m.runs[i].count > 1 {
			b.wireSingle(i)
		}
	}
	if m != nil {
		m.reset()
	}
	b.n, b.refused = 0, 0
}

func (b *SendBatch) size(i int) int {
	if n := b.count(i); n > 1 {
		return int(b.merger.runs[i].bytes)
	}
	return int(b.iovs[i].Len)
}

func (b *SendBatch) count(i int) int {
	if b.merger == nil || b.merger.joined == 0 {
		return 1
	}
	return int(b.merger.runs[i].count)
}

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
