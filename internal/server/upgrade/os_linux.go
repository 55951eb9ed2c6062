package upgrade

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

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

// inherited returns a descriptor that programs which this process starts do not get.
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

// checkOwner returns an error for a program that others than root and the user of this process may
// have written.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, neither to root nor to the user of this process, %d", path, stat.Uid, os.Geteuid())
	}
	if info.Mode()&0o022 != 0 {
		return fmt.Errorf("others may write %s (chmod go-w)", path)
	}
	return nil
}
