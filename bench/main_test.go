package bench

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(8) // The parallel ones wait for what the relay loses.
	goleak.VerifyTestMain(m)
}

// skipIfAllocating skips a test of the loop where the sockets make work for the garbage collector.
func skipIfAllocating(t *testing.T) {
	t.Helper()
	g, err := sock.Listen(sock.Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if testkit.RaceEnabled || g.Capabilities().Path != "mmsg" {
		t.Skip("the race detector and the portable build allocate")
	}
}
