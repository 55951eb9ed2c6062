//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"golang.org/x/sys/unix"
)

// RecvBatch is the memory for the datagrams of one Recv: slot i has a message
// header, an iovec, a name, room for a control message, and SlotSize bytes. All
// are wired once in NewRecvBatch. The goroutine that calls Recv owns it.
type RecvBatch struct {
	hdrs    []mmsghdr
	iovs    []unix.Iovec
	names   []byte
	ctrls   []byte // empty unless the group listens on a wildcard
	buf     []byte
	used    int  // slots the kernel wrote in the last call
	idle    bool // nothing came for heldTimeout
	poll    [1]unix.PollFd
	nameLen int
	ctrlLen int
	tail    uint64 // kind and listener of every endpoint
	v4      bool
	locals  *locals
	last    localAddr // the local address seen last and its number
	lastID  uint16
	row
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

// rearm restores the lengths the kernel has overwritten, in the used slots only.
func (b *RecvBatch) rearm() {
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

// local returns the number of the local address that datagram i was sent to.
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
// merge.go. Headers, iovecs, names and control messages are wired once in
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

// maxRun is the largest number of datagrams in a run: UDP_MAX_SEGMENTS of
// kernels before 6.9; later ones take 128.
const maxRun = 64

// canMerge reports whether a socket may merge: not where the kernel lacks
// UDP_SEGMENT, or is one of those that corrupt runs of equal datagrams (7.0 to
// 7.1.4; tailscale/tailscale#20547).
func canMerge(fd int) bool {
	if _, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT); err != nil {
		return false
	}
	var name unix.Utsname
	return unix.Uname(&name) != nil || !corrupts(unix.ByteSliceToString(name.Release[:]))
}

// corrupts reports whether a kernel of that release sends merged runs wrongly.
func corrupts(release string) bool {
	var v [3]int
	for i, part := range strings.SplitN(release, ".", 3) {
		for _, c := range part {
			if c < '0' || c > '9' {
				break
			}
			v[i] = v[i]*10 + int(c-'0')
		}
	}
	return v[0] == 7 && (v[1] == 0 || v[1] == 1 && v[2] <= 4)
}

// run is the message that datagrams to one endpoint share. Its first datagram
// is in SendBatch.iovs, as that of a message which nothing joins: most are.
type run struct {
	to         endpoint.Endpoint
	head, last int32 // datagrams that joined, linked by merger.next
	count      int32
	segment    int32 // size of every datagram but the last
	bytes      int32
	closed     bool // the last one was shorter, or the run is full
}

// merger finds the run that a datagram can join. It belongs to its SendBatch.
type merger struct {
	limit  *segmentLimit
	runs   []run        // by message
	parts  []unix.Iovec // datagrams that joined a run, as they came
	next   []int32      // of those: the next one of its run
	gather []unix.Iovec // the parts of merged runs, in order of the messages
	cells  []uint32     // by hash of the endpoint: generation<<16 | message
	round  uint32       // generation of the present batch
	secret uint64
	joined int // datagrams in parts
}

func newMerger(limit *segmentLimit, max int) *merger {
	size := 2
	for size < 2*max {
		size *= 2
	}
	return &merger{
		limit: limit, runs: make([]run, max), parts: make([]unix.Iovec, max), next: make([]int32, max),
		gather: make([]unix.Iovec, max), cells: make([]uint32, size), round: 1, secret: rand.Uint64() | 1,
	}
}

// place lets a datagram join a message, or reports false when it must begin
// message fresh.
func (m *merger) place(to endpoint.Endpoint, pkt []byte, fresh int) (joined bool) {
	at, mask := m.hash(to), uint64(len(m.cells)-1)
	for ; m.cells[at&mask]>>16 == m.round; at++ {
		r := &m.runs[m.cells[at&mask]&0xFFFF]
		if r.to == to {
			if r.join(int32(len(pkt))) {
				m.append(r, pkt)
				return true
			}
			break // A new run for this endpoint takes the cell.
		}
	}
	m.cells[at&mask] = m.round<<16 | uint32(fresh)
	r := &m.runs[fresh]
	r.to, r.count, r.segment, r.bytes = to, 1, int32(len(pkt)), int32(len(pkt))
	r.closed = len(pkt) == 0 || uint32(len(pkt)) > m.limit.Load()
	return false
}

// append adds a datagram that has joined r.
func (m *merger) append(r *run, pkt []byte) {
	d := int32(m.joined)
	m.joined++
	m.parts[d].Base = base(pkt)
	m.parts[d].SetLen(len(pkt))
	if r.count == 2 {
		r.head = d
	} else {
		m.next[r.last] = d
	}
	r.last = d
}

// join takes a datagram of n bytes into the run, if it may follow. An empty one
// cannot be cut off a message.
func (r *run) join(n int32) bool {
	if r.closed || n == 0 || n > r.segment || r.bytes+n > maxRunBytes {
		return false
	}
	r.count++
	r.bytes += n
	r.closed = n < r.segment || r.count == maxRun
	return true
}

// base returns the first byte of a datagram, or nil.
func base(pkt []byte) *byte {
	if len(pkt) == 0 {
		return nil
	}
	return &pkt[0]
}

func (m *merger) hash(to endpoint.Endpoint) uint64 {
	x := (to.Hi ^ to.Lo ^ to.Tail*0x9E3779B97F4A7C15) * m.secret
	return x ^ x>>32
}

func (m *merger) reset() {
	for i := range m.parts[:m.joined] {
		m.parts[i].Base = nil
	}
	m.joined = 0
	m.round++
	if m.round == 1<<16 {
		clear(m.cells)
		m.round = 1
	}
}

const segmentLen = 2 // UDP_SEGMENT holds a uint16

// initSegment writes the header of the control message into a slot.
func initSegment(slot []byte) {
	if cmsgLevelAt == 8 {
		binary.NativeEndian.PutUint64(slot, uint64(unix.CmsgLen(segmentLen)))
	} else {
		binary.NativeEndian.PutUint32(slot, uint32(unix.CmsgLen(segmentLen)))
	}
	binary.NativeEndian.PutUint32(slot[cmsgLevelAt:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(slot[cmsgTypeAt:], unix.UDP_SEGMENT)
}

func putSegment(slot []byte, size int) {
	binary.NativeEndian.PutUint16(slot[unix.CmsgLen(0):], uint16(size))
}
