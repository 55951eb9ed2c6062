//go:build !linux || !amd64 || sockportable

package fastpath

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

// path is a [driver.FastPath] that cannot be loaded on this platform.
type path struct{}

func newPath(Config) *path { return new(path) }

func (*path) Load(driver.FastPathSpec) (table.Memory, error) {
	return table.Memory{}, unavailable()
}

func unavailable() error {
	return fmt.Errorf("%w: it is for Linux on amd64, not %s on %s", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}

func (*path) Size() int64 { return 0 }

func (*path) Links() (map[int]*os.File, error) { return nil, nil }

func (*path) Optional() bool { return false }

// The engine calls none of the following, since Load has failed.

func (*path) SetQuota(table.Role, table.Quota) {}

func (*path) NextHop(endpoint.Endpoint, netip.AddrPort) table.NextHop { return 0 }

func (*path) Generation() uint64 { return 0 }

func (*path) Resume(uint64) {}

func (*path) SetEnabled(bool) {}

func (*path) Synchronize() {}

func (*path) Counts() privateapi.FastPathCounts {
	return privateapi.FastPathCounts{Mode: "tc", OffBecause: unavailable().Error()}
}

func (*path) Traffic(uint32) (datagrams, bytes uint64) { return 0, 0 }

func (*path) Run(context.Context, func()) error { return nil }

func (*path) Close() {}
