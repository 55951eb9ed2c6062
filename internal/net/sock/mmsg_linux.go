//go:build linux && !sockportable

package sock

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This is the only file of the package, and of the module, that imports unsafe.
// The kernel's three calls below have no wrapper in x/sys/unix.

// mmsghdr is struct mmsghdr of recvmmsg(2). Go pads it as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32 // bytes received or sent, written by the kernel
}

func (s *socket) recv(b *RecvBatch) (int, syscall.Errno) {
	b.reset()
	if s.held {
		return s.recvHeld(b)
	}
	n, errno := recvmmsg(s.fd, b.hdrs, unix.MSG_WAITFORONE)
	b.used = n
	return n, errno
}

// heldTimeout is how long a receiver keeps its processor without a datagram. It
// bounds the wait of the garbage collector if the signal that interrupts the call is
// switched off.
const heldTimeout = 10 * time.Millisecond

// quietTimeout bounds each further wait after one without a datagram.
const quietTimeout = 10 * time.Second

// recvHeld receives without notice to Go's scheduler while datagrams keep coming,
// and waits with it when they do not, or seldom.
func (s *socket) recvHeld(b *RecvBatch) (int, syscall.Errno) {
	idle := b.idle
	if idle {
		timeout, began := recvTimeout, Now()
		if b.quiet {
			timeout = quietTimeout
		}
		n, err := unix.Poll(b.poll[:], int(timeout.Milliseconds()))
		if errno, ok := err.(syscall.Errno); ok && errno != 0 {
			return 0, errno
		}
		if b.quiet = n == 0; b.quiet {
			return 0, syscall.EAGAIN
		}
		idle = Now()-began > heldTimeout.Nanoseconds()
	}
	n, errno := recvmmsgHeld(s.fd, b.hdrs, unix.MSG_WAITFORONE)
	b.used = n
	b.idle = idle || errno == syscall.EAGAIN
	return n, errno
}

func (s *socket) tryRecv(b *RecvBatch) (int, syscall.Errno) {
	b.reset()
	n, errno := recvmmsg(s.fd, b.hdrs, unix.MSG_DONTWAIT)
	b.used = n
	return n, errno
}

func (s *socket) send(b *SendBatch, first, end int) (int, syscall.Errno) {
	return sendmmsg(s.fd, b.hdrs[first:end], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// recvmmsg fills hdrs, which must not be empty, and returns how many.
func recvmmsg(fd int, hdrs []mmsghdr, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(hdrs))), uintptr(len(hdrs)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recvmmsgHeld is recvmmsg without notice to Go's scheduler: the calling goroutine
// keeps its processor while it blocks. See the package comment.
func recvmmsgHeld(fd int, hdrs []mmsghdr, flags int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(hdrs))), uintptr(len(hdrs)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// sendmmsg offers hdrs, which must not be empty, and returns how many were
// taken. It must not block, since it does not notify the scheduler.
func sendmmsg(fd int, hdrs []mmsghdr, flags int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(hdrs))), uintptr(len(hdrs)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// sleepHeld is clock_nanosleep(2) without notice to Go's scheduler. A signal ends it
// early.
func sleepHeld(ts *unix.Timespec) {
	_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(ts)), 0, 0, 0)
}

// meminfoDrops is SK_MEMINFO_DROPS of linux/sock_diag.h, the index of the drop
// counter in the result of SO_MEMINFO (Linux 4.12 and later).
const meminfoDrops = 8

func socketDrops(fd int) (uint64, bool) {
	var info [16]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || size < 4*(meminfoDrops+1) {
		return 0, false
	}
	return uint64(info[meminfoDrops]), true
}

// MapValues maps the first n values of an array that the kernel shares by a descriptor,
// as a map of BPF with BPF_F_MMAPABLE: programs in the kernel see a write to them at once,
// and the reverse. T has no pointers, and the layout of a C struct. The values must not be
// used after unmap. The descriptor may be closed at once. Error: that of mmap(2).
func MapValues[T any](fd, n int) (values []T, unmap func(), err error) {
	size := uintptr(n) * unsafe.Sizeof(*new(T))
	if size == 0 {
		return nil, nil, fmt.Errorf("%w: a mapping of %d values", ErrConfig, n)
	}
	mem, err := unix.MmapPtr(fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return unsafe.Slice((*T)(mem), n), func() { _ = unix.MunmapPtr(mem, size) }, nil
}
