//go:build !linux || !amd64 || sockportable

package fastpath

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/internal/table"
)

// Path is an [engine.FastPath] that cannot be loaded on this platform.
type Path struct{}

// New returns a fast path that is not loaded yet.
func New(Config) *Path { return new(Path) }

// Load implements [engine.FastPath]. The error wraps [ErrUnavailable].
func (*Path) Load(engine.FastPathSpec) (table.Memory, error) {
	return table.Memory{}, unavailable()
}

func unavailable() error {
	return fmt.Errorf("%w: it is for Linux on amd64, not %s on %s", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}

// Size returns 0.
func (*Path) Size() int64 { return 0 }

// Links returns no attachments.
func (*Path) Links() (map[int]*os.File, error) { return nil, nil }

// The engine calls none of the following, since Load has failed.

// SetQuota implements [engine.FastPath].
func (*Path) SetQuota(table.Role, table.Quota) {}

// NextHop implements [engine.FastPath].
func (*Path) NextHop(engine.Endpoint, netip.AddrPort) table.NextHop { return 0 }

// Generation implements [engine.FastPath].
func (*Path) Generation() uint64 { return 0 }

// Resume implements [engine.FastPath].
func (*Path) Resume(uint64) {}

// SetEnabled lets the program relay, or leave everything to workers.
func (*Path) SetEnabled(bool) {}

// Synchronize implements [engine.FastPath].
func (*Path) Synchronize() {}

// Counts implements [engine.FastPath].
func (*Path) Counts() engine.FastPathCounts {
	return engine.FastPathCounts{Mode: TC.String(), OffBecause: unavailable().Error()}
}

// Traffic implements [engine.FastPath].
func (*Path) Traffic(uint32) (datagrams, bytes uint64) { return 0, 0 }

// Run implements [engine.FastPath].
func (*Path) Run(context.Context, func()) error { return nil }

// Close implements [engine.FastPath].
func (*Path) Close() {}
