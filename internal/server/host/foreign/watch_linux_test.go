package foreign

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// reusePort is SO_REUSEPORT, which package syscall lacks for some processors.
const reusePort = 15

// open opens a socket that shares its port.
func open(t *testing.T, addr string) *net.UDPConn {
	t.Helper()
	var inner error
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		err := c.Control(func(fd uintptr) {
			inner = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1)
		})
		if err == nil {
			err = inner
		}
		return err
	}}
	conn, err := cfg.ListenPacket(t.Context(), "udp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UDPConn)
}

// TestJoin is the other process.
func TestJoin(t *testing.T) {
	addr := testkit.ChildTask()
	if addr == "" {
		t.Skip("this is what the other process of TestWatch runs")
	}
	open(t, addr)
	fmt.Println("joined")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is closed
}

type text = testkit.LogBuffer

// TestWatch is K1: one alarm for a second process in the group, and one line
// when it has gone.
func TestWatch(t *testing.T) {
	ours := open(t, "127.0.0.1:0")
	open(t, ours.LocalAddr().String()) // a second worker of ours
	addr := ours.LocalAddr().(*net.UDPAddr).AddrPort()
	log := new(text)
	w := NewWatch([]netip.AddrPort{addr}, slog.New(slog.NewTextHandler(log, nil)))
	w.every = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	defer cancel()

	other := testkit.StartChild(t, addr.String(), "-test.run=^TestJoin$")
	if line := other.Line(t); line != "joined" {
		t.Fatalf("the other process prints %q", line)
	}
	testkit.Eventually(t, "a socket is found", func() bool { return w.Sockets() == 1 })
	testkit.Eventually(t, "a line of level ERROR", func() bool { return strings.Contains(log.String(), "level=ERROR") })
	other.Stop(t)
	testkit.Eventually(t, "the socket is gone", func() bool { return w.Sockets() == 0 })
	testkit.Eventually(t, "a line of level INFO", func() bool { return strings.Contains(log.String(), "level=INFO") })
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

// TestScanFails: the watch continues after a failed scan, and finds a foreign socket with
// the next.
func TestScanFails(t *testing.T) {
	w := NewWatch(nil, slog.New(slog.DiscardHandler))
	w.every, w.proc = time.Millisecond, t.TempDir()
	w.count.Store(3)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	w.Run(ctx)
	if w.count.Load() != 3 || ctx.Err() == nil {
		t.Errorf("%d sockets after looks that failed, ended early: %v", w.count.Load(), ctx.Err() == nil)
	}
}
