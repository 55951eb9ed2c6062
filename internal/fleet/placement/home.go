package placement

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

var errRelayAway = fmt.Errorf("fleet: the host's relay does not announce itself: %w", alloc.ErrUnavailable)

// atHome calls the relay of a host, within relayTimeout. Errors: those of the call, and
// alloc.ErrUnavailable or alloc.ErrNotFound as [Fleet.ReserveJoiner].
func (f *Fleet) atHome(ctx context.Context, host proto.AllocationID, call func(context.Context, *Candidate, Relay) error) error {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, host)
	if err != nil {
		return err
	}
	return relayError(call(ctx, &c, f.dialer.Relay(c.Node)))
}

// ReserveJoiner makes a reservation at the host's relay. Errors: those of alloc.Relay.
// The hosts of a dead relay are alloc.ErrUnavailable while it may return, and
// alloc.ErrNotFound afterwards.
func (f *Fleet) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (res alloc.Reservation, err error) {
	err = f.atHome(ctx, r.Host, func(ctx context.Context, c *Candidate, relay Relay) error {
		made, err := relay.ReserveJoiner(ctx, r)
		if err != nil {
			return err
		}
		res = made
		res.Region = c.Region
		return nil
	})
	return res, err
}

// MigrateHost makes a reservation at the relay of the host that has left, and stores its
// home. Errors: those of alloc.Relay, and as for ReserveJoiner if the relay does not
// answer.
func (f *Fleet) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (res alloc.Reservation, err error) {
	err = f.atHome(ctx, r.Host, func(ctx context.Context, c *Candidate, relay Relay) error {
		made, err := relay.MigrateHost(ctx, r)
		if err != nil {
			return err
		}
		res, err = f.recordHome(ctx, c, made)
		return err
	})
	return res, err
}

// LeaveHost says at the host's relay that the host leaves. Errors: as for MigrateHost.
func (f *Fleet) LeaveHost(ctx context.Context, r alloc.LeaveRequest) error {
	return f.atHome(ctx, r.Host, func(ctx context.Context, _ *Candidate, relay Relay) error { return relay.LeaveHost(ctx, r) })
}

// Describe returns the description of a host from its relay. Joiners are not in the
// store, so the result for them is alloc.ErrNotFound. Errors: as for ReserveJoiner.
func (f *Fleet) Describe(ctx context.Context, id proto.AllocationID) (d alloc.Description, err error) {
	err = f.atHome(ctx, id, func(ctx context.Context, _ *Candidate, relay Relay) (err error) {
		d, err = relay.Describe(ctx, id)
		return err
	})
	return d, err
}

// KeepCode is for alloc.ServiceConfig.KeepCode. Errors: as ReserveJoiner's.
func (f *Fleet) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	return f.atHome(ctx, host, func(ctx context.Context, _ *Candidate, relay Relay) error { return relay.KeepCode(ctx, host, code) })
}

func relayError(err error) error {
	for _, verdict := range []error{
		alloc.ErrNotFound, alloc.ErrFull, alloc.ErrPlayerLimit, alloc.ErrDraining, alloc.ErrCodeMalformed, alloc.ErrTenantName,
		alloc.ErrMigration, alloc.ErrHostPresent, alloc.ErrUnavailable,
	} {
		if err == nil || errors.Is(err, verdict) {
			return err
		}
	}
	return unavailable("ask the host's relay", alloc.ErrUnavailable, err)
}

func (f *Fleet) home(ctx context.Context, host proto.AllocationID) (Candidate, error) {
	h, err := f.directory.HomeOf(ctx, host)
	switch {
	case errors.Is(err, alloc.ErrNotFound):
		return Candidate{}, f.relays.notFoundUnlessHealing(alloc.ErrNotFound)
	case err != nil:
		return Candidate{}, unavailable("look up the host's relay", alloc.ErrStoreUnavailable, err)
	}
	c, verdict := f.relays.liveRelay(h.Relay)
	if verdict == nil || !errors.Is(verdict, alloc.ErrNotFound) {
		return c, verdict
	}
	// ErrNotFound is final, and the relay may have started since the last poll.
	if !f.relays.refresh(ctx) {
		return Candidate{}, errRelayAway
	}
	return f.relays.liveRelay(h.Relay)
}

// Codes returns the directory as the store of an alloc.Service. It differs in
// one thing: for [HealFor] after the store has failed or lost data, a missing code is
// alloc.ErrStoreUnavailable instead of alloc.ErrCodeNotFound, because the host's relay
// may announce it again. So a valid code is not rejected, and no host gets a second one.
func (f *Fleet) Codes() alloc.Store { return codes{f.directory, f.relays} }

type codes struct {
	Directory
	relays *relays
}

func (c codes) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	host, err := c.Directory.HostOf(ctx, t, code)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.relays.notFoundUnlessHealing(err)
	}
	return host, err
}

func (c codes) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	code, err := c.Directory.CodeOf(ctx, t, host)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.relays.notFoundUnlessHealing(err)
	}
	return code, err
}
