//go:build unix

package sock

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

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
