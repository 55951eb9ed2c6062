package fleet

import (
	"context"
	"errors"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Codes returns the directory as the store of an alloc.Service. It differs in
// one thing: for [HealFor] after the store has failed or forgotten something, a
// code that is not there is alloc.ErrStoreUnavailable, since the host's relay may be
// about to announce it again. So no player is told that a good code is none,
// and no host is given a second one.
func (f *Fleet) Codes() alloc.Store { return codes{f.directory, f} }

type codes struct {
	Directory
	fleet *Fleet
}

// HostOf returns the host that code leads to.
func (c codes) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	host, err := c.Directory.HostOf(ctx, t, code)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.fleet.doubt(err)
	}
	return host, err
}

// CodeOf returns the code of host.
func (c codes) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	code, err := c.Directory.CodeOf(ctx, t, host)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.fleet.doubt(err)
	}
	return code, err
}
