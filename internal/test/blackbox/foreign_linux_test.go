package blackbox

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// reusePort is SO_REUSEPORT, which package syscall lacks for some processors.
const reusePort = 15

// TestForeignSocket is K1: another process of the same user joins the group of
// the relay's sockets, and the alarm is raised within 15 s.
func TestForeignSocket(t *testing.T) {
	t.Parallel()
	f := newPlace(t).serve()
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1)
		}); e != nil {
			return e
		}
		return err
	}}
	conn, err := cfg.ListenPacket(t.Context(), "udp4", f.udp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	for f.metric("ferry_foreign_sockets") != 1 {
		if time.Since(begin) > 15*time.Second {
			t.Fatalf("no alarm after %v; log:\n%s", time.Since(begin), f.Log.String())
		}
		time.Sleep(50 * time.Millisecond)
	}
	f.says("level=ERROR msg=\"ANOTHER PROCESS HAS A SOCKET ON THE UDP PORT")
	f.Stop()
}
