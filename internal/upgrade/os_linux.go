package upgrade

import (
	"fmt"
	"net"
	"os"
	"syscall"
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
