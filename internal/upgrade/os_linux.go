package upgrade

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/ferryrelay/ferry/internal/sock"
)

// socketPair returns a connection, and its other end for another process.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	f, theirs, err := sock.SocketPair(syscall.SOCK_STREAM, "upgrade")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
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
