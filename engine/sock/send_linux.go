//go:build linux && !sockportable

package sock

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// SendBatch is a list of datagrams for one Send, in order. Its headers, iovecs,
// names and control messages are wired once in NewSendBatch. One goroutine owns it.
type SendBatch struct {
	hdrs     []mmsghdr
	iovs     []unix.Iovec
	names    []byte
	ctrls    []byte // empty unless the group listens on a wildcard
	n        int    // entries for the kernel
	refused  int    // entries of a kind that the socket cannot reach
	nameLen  int
	ctrlLen  int
	v4       bool
	listener uint8
	locals   *locals
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
		b.ctrlLen = unix.CmsgSpace(pktinfoLen(b.v4))
		b.ctrls = make([]byte, max*b.ctrlLen)
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
	h.Iov = &b.iovs[i]
	h.SetIovlen(1)
	if b.ctrlLen > 0 {
		ctrl := b.ctrls[i*b.ctrlLen : (i+1)*b.ctrlLen]
		initPktinfo(ctrl, b.v4)
		h.Control = &ctrl[0]
	}
}

// Add appends a datagram; false means that the batch is full and nothing was
// added. pkt is borrowed until Send or Reset returns. An endpoint of another
// kind than the socket's is taken and counted as failed by Send.
func (b *SendBatch) Add(to Endpoint, pkt []byte) bool {
	if b.n+b.refused >= len(b.hdrs) {
		return false
	}
	i := b.n
	name := b.names[i*b.nameLen : (i+1)*b.nameLen]
	switch kind := to.Kind(); {
	case kind == KindUDP4 && b.v4:
		binary.BigEndian.PutUint32(name[4:8], uint32(to[1]))
	case kind == KindUDP6 && !b.v4:
		binary.BigEndian.PutUint64(name[8:16], to[0])
		binary.BigEndian.PutUint64(name[16:24], to[1])
	default:
		b.refused++
		return true
	}
	binary.BigEndian.PutUint16(name[2:4], uint16(to[2]))
	if len(pkt) > 0 {
		b.iovs[i].Base = &pkt[0]
	}
	b.iovs[i].SetLen(len(pkt))
	if b.ctrlLen > 0 {
		b.setSource(i, to)
	}
	b.n++
	return true
}

// setSource makes entry i leave from the local address the peer sent to.
func (b *SendBatch) setSource(i int, to Endpoint) {
	h := &b.hdrs[i].hdr
	a, ok := b.locals.at(to.Local())
	if !ok || to.Listener() != b.listener {
		h.SetControllen(0)
		return
	}
	putPktinfo(b.ctrls[i*b.ctrlLen:(i+1)*b.ctrlLen], a, b.v4)
	h.SetControllen(b.ctrlLen)
}

// Len returns the number of entries.
func (b *SendBatch) Len() int { return b.n + b.refused }

// Reset drops the entries and gives the borrowed packets back.
func (b *SendBatch) Reset() {
	for i := range b.iovs[:b.n] {
		b.iovs[i].Base = nil
	}
	b.n, b.refused = 0, 0
}

func (b *SendBatch) size(i int) int { return int(b.iovs[i].Len) }
