package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is a TCP connection that is read and written without blocking, by one goroutine.
// Go's runtime does not watch it, so that what arrives wakes no thread of it; see [Poller].
type Stream struct{ fd int }

// AdoptStream returns the Stream of a connection, which it closes for other use. Errors are
// those of the system; the connection is then unchanged.
func AdoptStream(c *net.TCPConn) (*Stream, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Stream{fd: -1}
	controlErr := raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(controlErr, os.NewSyscallError("fcntl", err)); err != nil {
		return nil, err
	}
	return s, c.Close() // The duplicate keeps the connection, and that it does not block.
}

// TryRead reads what has arrived: (0, nil) is nothing, io.EOF the end of the peer's data.
func (s *Stream) TryRead(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// TryWrite writes what the kernel's buffer has room for, and returns how many bytes that was.
func (s *Stream) TryWrite(b []byte) (int, error) {
	for {
		n, err := unix.SendmsgN(s.fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, os.NewSyscallError("send", err)
		default:
			return n, nil
		}
	}
}

// Unread returns how many bytes have arrived and were not read.
func (s *Stream) Unread() int {
	n, err := unix.IoctlGetInt(s.fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// ReadBuffer returns the size of the kernel's receive buffer in bytes, as it counts it: what
// it holds takes more than its own size.
func (s *Stream) ReadBuffer() int {
	n, _ := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	return n
}

// Info returns what the kernel knows of the connection; the zero value if it does not say.
func (s *Stream) Info() StreamInfo {
	i, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return StreamInfo{}
	}
	return StreamInfo{
		WindowClosed: time.Duration(i.Rwnd_limited) * time.Microsecond, Retransmitted: uint64(i.Total_retrans),
		SegmentsSent: uint64(i.Data_segs_out), SegmentsReceived: uint64(i.Data_segs_in),
		ReceiveWindow: int(i.Rcv_wnd),
	}
}

// Close closes the connection.
func (s *Stream) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// Poller reports which of many sockets can be read, without a call for each. One goroutine
// uses it.
type Poller struct {
	fd     int
	events []unix.EpollEvent
}

// NewPoller returns a Poller without sockets. The error is that of the system, or
// errors.ErrUnsupported outside of Linux.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &Poller{fd: fd, events: make([]unix.EpollEvent, 256)}, nil
}

// AddStream adds a connection under a number, until it is closed.
func (p *Poller) AddStream(s *Stream, number int32) error {
	return p.control(unix.EPOLL_CTL_ADD, s.fd, number, false)
}

// AwaitWritable sets whether Ready reports a connection too when its buffer has room.
func (p *Poller) AwaitWritable(s *Stream, number int32, on bool) error {
	return p.control(unix.EPOLL_CTL_MOD, s.fd, number, on)
}

func (p *Poller) control(op, fd int, number int32, writable bool) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: number}
	if writable {
		e.Events |= unix.EPOLLOUT
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, op, fd, &e))
}

// Ready appends the numbers of sockets that can be read, or have ended, to list: 256 at
// most, in turns. It does not block.
func (p *Poller) Ready(list []int32) ([]int32, error) {
	n, err := unix.EpollWait(p.fd, p.events, 0)
	if err == unix.EINTR {
		return list, nil
	}
	for _, e := range p.events[:max(n, 0)] {
		list = append(list, e.Fd)
	}
	return list, os.NewSyscallError("epoll_wait", err)
}

// Close closes the Poller and none of its sockets.
func (p *Poller) Close() error { return os.NewSyscallError("close", unix.Close(p.fd)) }
