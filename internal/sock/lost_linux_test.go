//go:build linux && !sockportable

package sock

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLostDescriptor closes a descriptor behind the package's back, or puts a
// file in its place: that is the one thing for which Recv gives up, since it
// would wait for ever. An errno alone does not make it so.
func TestLostDescriptor(t *testing.T) {
	file, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(file) }()
	for _, tt := range []struct {
		errno syscall.Errno
		lose  func(fd int) error
	}{
		{unix.EBADF, unix.Close},
		{unix.ENOTSOCK, func(fd int) error { return unix.Dup3(file, fd, unix.O_CLOEXEC) }},
	} {
		c := listenOn(t, "127.0.0.1:0").Conns()[0]
		b := c.NewRecvBatch()
		c.kernel = recvScript{c.sock, func(*RecvBatch) (int, syscall.Errno) { return 0, tt.errno }}
		if n, err := c.Recv(b); n != 0 || err != nil {
			t.Errorf("%v on a sound descriptor: %d, %v", tt.errno, n, err)
		}
		c.kernel = c.sock
		fd := c.sock.fd
		spare, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := tt.lose(fd); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Recv(b); n != 0 || !errors.Is(err, tt.errno) {
			t.Errorf("%v: %d, %v", tt.errno, n, err)
		}
		if n, err := c.TryRecv(b); n != 0 || !errors.Is(err, tt.errno) {
			t.Errorf("%v: TryRecv: %d, %v", tt.errno, n, err)
		}
		if err := unix.Dup3(spare, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(spare); err != nil {
			t.Fatal(err)
		}
	}
}
