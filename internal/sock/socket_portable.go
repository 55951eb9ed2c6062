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
		// What is granted is not known here, and a refusal leaves the default.
		_ = conn.SetReadBuffer(cfg.ReadBuffer)
		_ = conn.SetWriteBuffer(cfg.WriteBuffer)
	}
	return s, nil
}

// share lets further sockets of this user bind the same port.
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

// recv fills b as Conn.Recv says. The deadline is set before the gate is looked
// at, and shutdown does it the other way round, so that one of them sees the
// other.
func (s *socket) recv(b *RecvBatch) (int, syscall.Errno) {
	if err := s.conn.SetReadDeadline(time.Now().Add(recvTimeout)); err != nil {
		return 0, errnoOf(err)
	}
	if b.conn.gate.has(gateShut | gateMuted) {
		return 0, syscall.EAGAIN
	}
	n, err := s.io.ReadBatch(b.ms, 0)
	return max(n, 0), errnoOf(err)
}

// send offers messages first to end-1 of b and returns how many were taken.
func (s *socket) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	n, err := s.io.WriteBatch(b.ms[first:end], sendFlags)
	return max(n, 0), errnoOf(err)
}

// errnoOf reduces an error of package net to what Conn distinguishes.
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

// nap rounds up to a millisecond and more, which is the best there is here.
func (s *socket) nap(d time.Duration) { time.Sleep(d) }

// shutdown wakes a receiver that waits in the poller.
func (s *socket) shutdown(both bool) {
	past := time.Unix(1, 0)
	_ = s.conn.SetReadDeadline(past)
	if both {
		_ = s.conn.SetWriteDeadline(past)
	}
}

// gone is false: package net keeps the descriptor to itself.
func (s *socket) gone() bool { return false }

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
