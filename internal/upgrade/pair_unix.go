//go:build unix

package upgrade

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketPair returns a connection, and its other end for another process.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(pair[0]), "upgrade")
	defer f.Close()
	theirs = os.NewFile(uintptr(pair[1]), "upgrade")
	if ours, err = net.FileConn(f); err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
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
		if again, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			f = os.NewFile(uintptr(again), name)
		}
	})
	return f, errors.Join(failed, os.NewSyscallError("fcntl", err))
}

// inherited returns an open descriptor of this process, which programs that it starts do not
// get.
func inherited(fd int, name string) (*os.File, error) {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, fmt.Errorf("descriptor %d is not open", fd)
	}
	if _, err := f.Stat(); err != nil {
		return nil, err
	}
	return f, nil
}
