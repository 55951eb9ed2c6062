package sock

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// canShare reports whether several sockets can share a port and the kernel
// spreads the peers over them.
const canShare = true

// setOptions prepares a socket before it is bound, in both builds.
func setOptions(fd int, cfg *Config, join bool) (Capabilities, error) {
	v4 := cfg.Addr.Addr().Is4()
	if join {
		if err := setShared(fd); err != nil {
			return Capabilities{}, err
		}
	}
	if !v4 {
		if err := setV6Only(fd); err != nil {
			return Capabilities{}, err
		}
	}
	return Capabilities{
		PathMTU:      setPathMTU(fd, v4),
		LocalAddress: setLocalAddress(fd, cfg.Addr.Addr()),
		ReadBuffer:   setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cfg.ReadBuffer),
		WriteBuffer:  setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, cfg.WriteBuffer),
	}, nil
}

// setV6Only makes a socket receive IPv6 only. A bound one, of another process, keeps what it
// has: the kernel refuses even the same value.
func setV6Only(fd int) error {
	if on, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err == nil && on == 1 {
		return nil
	}
	return os.NewSyscallError("setsockopt IPV6_V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
}

func setShared(fd int) error {
	return os.NewSyscallError("setsockopt SO_REUSEPORT",
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
}

// setPathMTU keeps ICMP errors off the socket: an error raised by one dead peer would
// otherwise be handed to a send to another. That is the default, so its result does not
// matter.
//
// Over IPv4 the kernel ignores path MTUs learnt from ICMP, which any host can forge, and
// routers fragment. Routers of IPv6 do not, so there the kernel heeds them, and fragments
// what is larger. That is the default too, but IPV6_PMTUDISC_WANT hands on the error.
func setPathMTU(fd int, v4 bool) bool {
	if v4 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 0)
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT) == nil
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 0)
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT) == nil
}

// PathMTU returns the size in bytes of the largest IPv6 packet that the kernel sends to an
// address whole: by its interface and route, and by what routers have said lately. It sends
// nothing. Errors: ErrAddress, and those of socket(7).
func PathMTU(to netip.Addr) (int, error) {
	if !to.Is6() || to.Is4In6() {
		return 0, ErrAddress
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const discard = 9 // any port: the kernel looks up the route
	if err := unix.Connect(fd, &unix.SockaddrInet6{Addr: to.As16(), Port: discard}); err != nil {
		return 0, os.NewSyscallError("connect", err)
	}
	mtu, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
	return mtu, os.NewSyscallError("getsockopt IPV6_MTU", err)
}

// setLocalAddress requests the local address of each datagram, unless the socket has
// only one.
func setLocalAddress(fd int, ip netip.Addr) bool {
	switch {
	case !ip.IsUnspecified():
		return true
	case ip.Is4():
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1) == nil
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1) == nil
}

// setBuffer tries the privileged option first and returns the granted size.
// The kernel doubles the size for its own use and reports the double.
func setBuffer(fd, force, plain, size int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	granted, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, plain)
	if err != nil {
		return 0
	}
	return granted / 2
}

// maxCPU is the number of CPUs a unix.CPUSet can name.
const maxCPU = 1024

// PinThread locks the calling goroutine to its thread and the thread to one
// CPU, 0 <= cpu < 1024. It cannot be undone: the thread ends with the
// goroutine, so that no other goroutine inherits the CPU. On error nothing has
// changed.
func PinThread(cpu int) error {
	if cpu < 0 || cpu >= maxCPU {
		return fmt.Errorf("sock: pin to cpu %d: %w", cpu, unix.EINVAL)
	}
	var set unix.CPUSet
	set.Set(cpu)
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("sock: pin to cpu %d: %w", cpu, err)
	}
	return nil
}

// SetTimerSlack sets by how much the kernel may prolong a sleep of the calling thread, to
// end it together with other timers; 0 is the thread's default, 50 µs unless the process
// has another.
func SetTimerSlack(d time.Duration) error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0))
}

// ThreadTime returns the CPU time of the calling thread in nanoseconds; 0: it is not
// known. It is a system call of less than a microsecond.
func ThreadTime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return t.Nano()
}

// ReadClock returns the state of the system's clock.
func ReadClock() ClockState {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return ClockState{}
	}
	const timeError, unsynchronized = 5, 0x40 // TIME_ERROR and STA_UNSYNC of linux/timex.h
	return ClockState{
		Known: true, Synchronized: state != timeError && t.Status&unsynchronized == 0,
		MaxError: time.Duration(t.Maxerror) * time.Microsecond,
	}
}

// Thread returns the id of the calling thread, for [InterruptThread].
func Thread() int { return unix.Gettid() }

// InterruptThread ends a [Conn.Recv] that blocks on that thread of this process, if one does
// at this moment. The signal is that by which Go preempts goroutines.
func InterruptThread(thread int) { _ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) }

// Capability is a capability of Linux. CAP_SYS_ADMIN includes that for BPF and perfmon.
type Capability int

const (
	CapBPF      Capability = unix.CAP_BPF
	CapNetAdmin Capability = unix.CAP_NET_ADMIN
	CapPerfmon  Capability = unix.CAP_PERFMON
)

// IsGranted reports whether this process may use the capability.
func (c Capability) IsGranted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	has := func(c Capability) bool { return data[c/32].Effective>>(c%32)&1 != 0 }
	return has(c) || c != CapNetAdmin && has(unix.CAP_SYS_ADMIN)
}

const membarrierGlobal = 1

// SynchronizeKernel blocks until every section of the kernel that runs now and reads under
// RCU, as programs of BPF on a network interface do, has ended: some milliseconds. The
// error is that of membarrier(2), which kernels with nohz_full refuse.
func SynchronizeKernel() error {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("membarrier", errno)
	}
	return nil
}

// Monotonic returns CLOCK_MONOTONIC, which programs in the kernel read as well, in
// nanoseconds.
func Monotonic() (int64, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano(), os.NewSyscallError("clock_gettime", err)
}

// reserve gives the holes in the first size bytes of a file their room on the
// file system, if it can do that. Their content does not change.
func reserve(fd int, size int64) (err error) {
	for range maxInterrupts {
		err = unix.Fallocate(fd, 0, 0, size)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return nil
	}
	return err
}

// OpenMemory returns a file in memory, of which so many bytes are allocated.
func OpenMemory(size int) (*os.File, error) {
	fd, err := unix.MemfdCreate("ferry", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if size == 0 {
		return f, nil
	}
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("fallocate", err)
	}
	return f, nil
}
