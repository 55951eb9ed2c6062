//go:build linux && sockportable

package sock

import "testing"

func descriptor(t *testing.T, c *Conn, f func(fd int)) {
	t.Helper()
	rc, err := c.sock.conn.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}
