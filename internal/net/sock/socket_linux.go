//go:build linux && !sockportable

package sock

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a blocking UDP descriptor. It is immutable; the descriptor is valid
// while Conn.gate has users.
type socket struct {
	fd   int
	v4   bool
	held bool // Config.HoldProcessor
	caps Capabilities
}

func openSocket(cfg *Config, join bool) (*socket, error) {
	domain := unix.AF_INET6
	if cfg.Addr.Addr().Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, v4: domain == unix.AF_INET, held: cfg.HoldProcessor}
	if err := s.bind(cfg, join); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func adoptSocket(cfg *Config, f *os.File) (*socket, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	s := &socket{fd: fd, v4: cfg.Addr.Addr().Is4(), held: cfg.HoldProcessor}
	err = unix.SetNonblock(fd, false)
	if err == nil {
		err = s.configure(cfg, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	_ = f.Close()
	return s, nil
}

func (s *socket) file() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "udp"), nil
}

func (s *socket) bind(cfg *Config, join bool) error {
	if err := s.configure(cfg, join); err != nil {
		return err
	}
	sa, err := sockaddr(cfg.Addr)
	if err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(s.fd, sa))
}

func (s *socket) configure(cfg *Config, join bool) error {
	caps, err := setOptions(s.fd, cfg, join)
	if err != nil {
		return err
	}
	timeout := unix.NsecToTimeval(recvTimeout.Nanoseconds())
	if s.held {
		timeout = unix.NsecToTimeval(heldTimeout.Nanoseconds())
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	caps.Path = "mmsg"
	_, caps.DropCounter = socketDrops(s.fd)
	caps.GSO = !cfg.DisableGSO && canMerge(s.fd)
	s.caps = caps
	return nil
}

func sockaddr(addr netip.AddrPort) (unix.Sockaddr, error) {
	ip := addr.Addr()
	if ip.Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(addr.Port()), Addr: ip.As16()}
	if zone := ip.Zone(); zone != "" {
		if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			sa.ZoneId = uint32(n)
			return sa, nil
		}
		ifi, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = uint32(ifi.Index)
	}
	return sa, nil
}

func (s *socket) share() error { return setShared(s.fd) }

func (s *socket) addr() (netip.AddrPort, error) {
	sa, err := unix.Getsockname(s.fd)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(sa.ZoneId), 10))
		}
		return netip.AddrPortFrom(ip, uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, ErrAddress
}

// sleep blocks the calling thread for d. time.Sleep would round up to a
// millisecond. The kernel adds the thread's timer slack; see SetTimerSlack.
func (s *socket) sleep(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	if s.held {
		sleepHeld(&ts)
		return
	}
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
}

// shutdown wakes a receiver that is blocked in the kernel. On a socket without
// a peer it does so and returns ENOTCONN.
func (s *socket) shutdown(both bool) {
	how := unix.SHUT_RD
	if both {
		how = unix.SHUT_RDWR
	}
	_ = unix.Shutdown(s.fd, how)
}

// isInvalid reports whether the descriptor is no socket any more. It does not detect
// a number that the kernel gave to another socket.
func (s *socket) isInvalid() bool {
	_, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == unix.EBADF || err == unix.ENOTSOCK
}

func (s *socket) drops() uint64 {
	n, _ := socketDrops(s.fd)
	return n
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }
