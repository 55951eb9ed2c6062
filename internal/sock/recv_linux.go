//go:build linux && !sockportable

package sock

import (
	"encoding/binary"

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
