package redisstore

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/joincode"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	SetLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// testTimeout is a time-out for tests that are not about it.
const testTimeout = 20 * time.Second

// tenant is the tenant of most tests.
var tenant = alloc.Tenant{Project: "game", Environment: "production"}

// hostID returns an id of a host; ids of different n differ.
func hostID(n int) proto.AllocationID {
	return proto.AllocationID{0: 0xC0, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

// codeText returns a code of eight symbols; codes of different n differ.
func codeText(n int) string {
	smallest, _ := joincode.Pack("66666666")
	return joincode.Unpack(smallest + uint64(n))
}

// open returns a store that runs until the test ends.
func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
