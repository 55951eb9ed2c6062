//go:build unix

package sock

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// SocketPair returns two sockets of the machine that are connected to each other: of a stream of
// bytes, or of packets if kind is syscall.SOCK_SEQPACKET. Programs that this process starts do
// not get them.
func SocketPair(kind int, name string) (a, b *os.File, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, kind, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name), nil
}

// Dup returns another descriptor of a connection or listener, which stays in non-blocking mode:
// the File methods of package net do not keep it.
func Dup(c syscall.Conn, name string) (f *os.File, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		var again int
		if again, err = DupDescriptor(int(fd)); err == nil {
			f = os.NewFile(uintptr(again), name)
		}
	})
	return f, errors.Join(failed, err)
}

// DupDescriptor returns another descriptor, which programs that this process starts do not get.
func DupDescriptor(fd int) (int, error) {
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return again, os.NewSyscallError("fcntl", err)
}
