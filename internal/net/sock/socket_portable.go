//go:build !linux || sockportable

package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/net/ipv4"
)

// socket is a UDP connection of package net with batched calls where the
// platform has them. It is immutable.
type socket struct {
	conn *net.UDPConn
	io   packetIO
	v4   bool
	caps Capabilities
}

func openSocket(cfg *Config, join bool) (*socket, error) {
	s := &socket{v4: cfg.Addr.Addr().Is4()}
	var optErr error
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		err := rc.Control(func(fd uintptr) { s.caps, optErr = setOptions(int(fd), cfg, join) })
		return errors.Join(err, optErr)
	}}
	network := "udp6"
	if s.v4 {
		network = "udp4"
	}
	pc, err := lc.ListenPacket(context.Background(), network, cfg.Addr.String())
	if err != nil {
		return nil, err
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("sock: %T is not a UDP connection", pc), pc.Close())
	}
	s.conn = conn
	s.io, s.caps.LocalAddress = newPacketIO(conn, cfg.Addr.Addr())
	s.caps.Path = "portable"
	if s.caps.ReadBuffer == 0 {
		// The granted size is unknown, and a refusal leaves the default.
		_ = conn.SetReadBuffer(cfg.ReadBuffer)
		_ = conn.SetWriteBuffer(cfg.WriteBuffer)
	}
	return s, nil
}

func (s *socket) steerByCPU([]int) error { return errors.ErrUnsupported }

func adoptSocket(*Config, *os.File) (*socket, error) { return nil, errors.ErrUnsupported }

func (s *socket) file() (*os.File, error) { return nil, errors.ErrUnsupported }

func (s *socket) share() error {
	rc, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = rc.Control(func(fd uintptr) { optErr = setShared(int(fd)) })
	return errors.Join(err, optErr)
}

func (s *socket) addr() (netip.AddrPort, error) {
	a, ok := s.conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}, ErrAddress
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// recv fills b for Conn.Recv. It sets the deadline before it checks the gate, and
// StopReceiving marks the gate before it sets the deadline, so that one of them
// observes the other.
func (s *socket) recv(b *RecvBatch) (int, syscall.Errno) {
	if err := s.conn.SetReadDeadline(time.Now().Add(recvTimeout)); err != nil {
		return 0, errnoOf(err)
	}
	if b.conn.gate.has(gateRecvClosed) {
		return 0, syscall.EAGAIN
	}
	n, err := s.io.ReadBatch(b.ms, 0)
	return max(n, 0), errnoOf(err)
}

func (s *socket) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	n, err := s.io.WriteBatch(b.ms[first:end], sendFlags)
	return max(n, 0), errnoOf(err)
}

// errnoOf reduces an error of package net to the errno values that Conn distinguishes.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, os.ErrDeadlineExceeded):
		return syscall.EAGAIN
	case errors.As(err, &errno) && errno != 0:
		return errno
	}
	return syscall.EIO
}

// sleep rounds up to a millisecond or more.
func (s *socket) sleep(d time.Duration) { time.Sleep(d) }

// shutdown wakes a receiver that waits in the poller.
func (s *socket) shutdown(both bool) {
	past := time.Unix(1, 0)
	_ = s.conn.SetReadDeadline(past)
	if both {
		_ = s.conn.SetWriteDeadline(past)
	}
}

// isInvalid is false: package net owns the descriptor.
func (s *socket) isInvalid() bool { return false }

func (s *socket) drops() uint64 { return 0 }

func (s *socket) close() error { return s.conn.Close() }

// tryWait bounds a read that the platform cannot do without waiting. A deadline
// in the past would fail before it looks at the socket.
const tryWait = time.Millisecond

func (s *socket) tryRecv(b *RecvBatch) (int, syscall.Errno) {
	if err := s.conn.SetReadDeadline(time.Now().Add(tryWait)); err != nil {
		return 0, errnoOf(err)
	}
	// The flag for sending without waiting is that for receiving too.
	n, err := s.io.ReadBatch(b.ms, sendFlags)
	return max(n, 0), errnoOf(err)
}

// RecvBatch is the memory for the datagrams of one Recv. The goroutine that
// calls Recv owns it.
type RecvBatch struct {
	ms     []ipv4.Message
	conn   *Conn
	errors errorStreak
}

// NewRecvBatch allocates a batch of [Config].Batch slots for c.
func (c *Conn) NewRecvBatch() *RecvBatch {
	b := &RecvBatch{ms: make([]ipv4.Message, c.group.cfg.Batch), conn: c}
	buf := make([]byte, len(b.ms)*SlotSize)
	for i := range b.ms {
		b.ms[i].Buffers = [][]byte{buf[i*SlotSize : (i+1)*SlotSize]}
		if c.controls() {
			b.ms[i].OOB = make([]byte, controlSize(c.sock.v4))
		}
	}
	return b
}

func (c *Conn) controls() bool { return c.group.wildcard() && c.group.caps.LocalAddress }

// At is as in batch_linux.go.
func (b *RecvBatch) At(i int) (from endpoint.Endpoint, pkt []byte, truncated bool) {
	m := &b.ms[i]
	n := min(m.N, SlotSize)
	pkt = m.Buffers[0][:n:n]
	truncated = m.Flags&truncFlag != 0
	addr, ok := m.Addr.(*net.UDPAddr)
	if !ok {
		return endpoint.Endpoint{}, pkt, truncated
	}
	from = endpoint.UDP(addr.AddrPort(), b.local(m), b.conn.group.cfg.Listener)
	if (from.Kind() == endpoint.KindUDP4) != b.conn.sock.v4 {
		// A mapped address on an IPv6-only socket is forged and has no way back.
		from = endpoint.Endpoint{}
	}
	return from, pkt, truncated
}

func (b *RecvBatch) local(m *ipv4.Message) uint16 {
	if !b.conn.controls() {
		return 0
	}
	ip, zone := parseControl(m.OOB[:m.NN], b.conn.sock.v4)
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return 0
	}
	e := endpoint.UDP(netip.AddrPortFrom(ip, 0), 0, 0)
	a := localAddr{hi: e.Hi, lo: e.Lo}
	if ip.Is6() && ip.IsLinkLocalUnicast() {
		a.zone = zone
	}
	return b.conn.group.locals.id(a)
}

// SendBatch is a list of datagrams for one Send, in order. One goroutine owns it.
type SendBatch struct {
	ms      []ipv4.Message
	addrs   []net.UDPAddr // the address of entry i, with room for 16 bytes
	n       int           // entries for the kernel
	refused int           // entries of a kind that the socket cannot reach
	conn    *Conn
}

// NewSendBatch is as in batch_linux.go.
func (c *Conn) NewSendBatch(max int) *SendBatch {
	max = clampSendBatch(max)
	b := &SendBatch{ms: make([]ipv4.Message, max), addrs: make([]net.UDPAddr, max), conn: c}
	for i := range b.ms {
		b.addrs[i].IP = make(net.IP, 0, net.IPv6len)
		b.ms[i].Addr = &b.addrs[i]
		b.ms[i].Buffers = make([][]byte, 1)
	}
	return b
}

// Add is as in batch_linux.go.
func (b *SendBatch) Add(to endpoint.Endpoint, pkt []byte) bool {
	if b.Len() >= len(b.ms) {
		return false
	}
	dst := to.AddrPort()
	if !dst.IsValid() || dst.Addr().Is4() != b.conn.sock.v4 {
		b.refused++
		return true
	}
	m, a := &b.ms[b.n], &b.addrs[b.n]
	if ip := dst.Addr(); ip.Is4() {
		ip4 := ip.As4()
		a.IP = append(a.IP[:0], ip4[:]...)
	} else {
		ip16 := ip.As16()
		a.IP = append(a.IP[:0], ip16[:]...)
	}
	a.Port = int(dst.Port())
	m.Buffers[0] = pkt
	m.OOB = b.source(to)
	b.n++
	return true
}

func (b *SendBatch) source(to endpoint.Endpoint) []byte {
	g := b.conn.group
	if !b.conn.controls() || to.Listener() != g.cfg.Listener {
		return nil
	}
	a, ok := g.locals.at(to.Local())
	if !ok {
		return nil
	}
	return marshalControl(localIP(a, b.conn.sock.v4), a.zone)
}

// Len returns the number of entries.
func (b *SendBatch) Len() int { return b.n + b.refused }

// Reset drops the entries and gives the borrowed packets back.
func (b *SendBatch) Reset() {
	for i := range b.ms[:b.n] {
		b.ms[i].Buffers[0] = nil
	}
	b.n, b.refused = 0, 0
}

func (b *SendBatch) size(i int) int { return len(b.ms[i].Buffers[0]) }

// The portable build has no runs: every message is one datagram.
func (b *SendBatch) wireRuns()                           {}
func (b *SendBatch) count(int) int                       { return 1 }
func (b *SendBatch) noteRefusedMerge(int, syscall.Errno) {}
func (b *SendBatch) wirePart(int, int)                   {}
func (b *SendBatch) partSize(i int) int                  { return b.size(i) }
