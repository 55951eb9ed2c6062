package sock

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	if testkit.ChildTask() != "" {
		if err := descriptorsChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func listen(t testing.TB, cfg Config, n int) *Group {
	t.Helper()
	g, err := Listen(cfg, n)
	if err != nil {
		t.Fatalf("Listen(%v, %d): %v", cfg.Addr, n, err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return g
}

func listenOn(t testing.TB, addr string) *Group {
	t.Helper()
	return listen(t, Config{Addr: netip.MustParseAddrPort(addr)}, 1)
}

// dial opens a connected client, which receives from the address it dialled only.
func dial(t testing.TB, from, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var local *net.UDPAddr
	if from.IsValid() {
		local = net.UDPAddrFromAddrPort(from)
	}
	c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatalf("dial %v: %v", to, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func write(t testing.TB, c *net.UDPConn, pkt []byte) {
	t.Helper()
	if _, err := c.Write(pkt); err != nil {
		t.Fatalf("client write: %v", err)
	}
}

func read(t testing.TB, c *net.UDPConn) []byte {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(testkit.WaitLimit)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatalf("client read: %v", err)
	}
	return buf[:n]
}

func recvSome(t testing.TB, c *Conn, b *RecvBatch) int {
	t.Helper()
	for end := time.Now().Add(testkit.WaitLimit); time.Now().Before(end); {
		n, err := c.Recv(b)
		if err != nil {
			t.Fatalf("Recv: %v", err)
		}
		if n > 0 {
			return n
		}
	}
	t.Fatalf("no datagram within %v", testkit.WaitLimit)
	return 0
}

func serve(c *Conn) error {
	rx, tx := c.NewRecvBatch(), c.NewSendBatch(MaxBatch)
	for {
		n, err := c.Recv(rx)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range n {
			from, pkt, _ := rx.At(i)
			tx.Add(from, pkt)
		}
		c.Send(tx)
	}
}

// needV6 skips the test on a host without ::1, except in CI.
func needV6(t testing.TB) {
	t.Helper()
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err == nil {
		_ = c.Close()
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("CI must have IPv6 on loopback: %v", err)
	}
	t.Skipf("no IPv6 on loopback: %v", err)
}

// TestUnsafeInOneFile enforces the rule of the package comment.
func TestUnsafeInOneFile(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			switch {
			case imp.Path.Value != `"unsafe"`:
			case e.Name() == "mmsg_linux.go":
				seen = true
			default:
				t.Errorf("%s imports unsafe", e.Name())
			}
		}
	}
	if !seen {
		t.Error("mmsg_linux.go does not import unsafe: is this test out of date?")
	}
}
