package placement

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// errRelayAway is returned for a host whose relay may still return.
var errRelayAway = fmt.Errorf("fleet: the host's relay does not announce itself: %w", alloc.ErrUnavailable)

// ReserveJoiner makes a reservation at the host's relay. Errors: those of alloc.Relay.
// The hosts of a dead relay are alloc.ErrUnavailable while it may return, and
// alloc.ErrNotFound afterwards.
func (f *Fleet) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, r.Host)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res, err := f.dialer.Relay(c.Node).ReserveJoiner(ctx, r)
	if err != nil {
		return alloc.Reservation{}, relayError(err)
	}
	res.Region = c.Region
	return res, nil
}

// MigrateHost makes a reservation at the relay of the host that has left, and stores its
// home. Errors: those of alloc.MigrationRelay, and as for ReserveJoiner if the relay does not
// answer.
func (f *Fleet) MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, r.Host)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res, err := f.dialer.Relay(c.Node).MigrateHost(ctx, r)
	if err != nil {
		return alloc.Reservation{}, relayError(err)
	}
	if err := f.setHome(ctx, &c, &res); err != nil {
		return alloc.Reservation{}, err
	}
	return res, nil
}

// LeaveHost says at the host's relay that the host leaves. Errors: as for MigrateHost.
func (f *Fleet) LeaveHost(ctx context.Context, r alloc.LeaveRequest) error {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, r.Host)
	if err != nil {
		return err
	}
	return relayError(f.dialer.Relay(c.Node).LeaveHost(ctx, r))
}

// Describe returns the description of a host from its relay. Joiners are not in the
// store, so the result for them is alloc.ErrNotFound. Errors: as for ReserveJoiner.
func (f *Fleet) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, id)
	if err != nil {
		return alloc.Description{}, err
	}
	d, err := f.dialer.Relay(c.Node).Describe(ctx, id)
	return d, relayError(err)
}

// KeepCode sends a join code to its host's relay; it is for
// alloc.ServiceConfig.KeepCode.
// Errors: as ReserveJoiner's.
func (f *Fleet) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	c, err := f.home(ctx, host)
	if err != nil {
		return err
	}
	return relayError(f.dialer.Relay(c.Node).KeepCode(ctx, host, code))
}

// relayError returns the error of a relay as one of package alloc.
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

// home returns the relay of a host, if it is live.
func (f *Fleet) home(ctx context.Context, host proto.AllocationID) (Candidate, error) {
	h, err := f.directory.HomeOf(ctx, host)
	switch {
	case errors.Is(err, alloc.ErrNotFound):
		return Candidate{}, f.notFoundUnlessHealing(alloc.ErrNotFound)
	case err != nil:
		return Candidate{}, unavailable("look up the host's relay", alloc.ErrStoreUnavailable, err)
	}
	c, verdict := f.liveRelay(h.Relay)
	if verdict == nil || !errors.Is(verdict, alloc.ErrNotFound) {
		return c, verdict
	}
	// ErrNotFound is final, and the relay may have started since the last poll.
	if !f.refresh(ctx) {
		return Candidate{}, errRelayAway
	}
	return f.liveRelay(h.Relay)
}

// liveRelay returns the relay, errRelayAway for one that may come back, or
// alloc.ErrNotFound.
func (f *Fleet) liveRelay(relay alloc.RelayID) (Candidate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	f.view.updateAges(now)
	i, ok := f.view.find(relay)
	switch {
	case ok && f.view.nodes[i].Age <= DeadAfter:
		return f.view.nodes[i], nil
	case ok && f.view.nodes[i].Age <= DeadAfter+f.view.nodes[i].RecoverFor, !f.view.settled(now):
		return Candidate{}, errRelayAway
	}
	return Candidate{}, alloc.ErrNotFound
}

// errHealing is returned for what the store does not have while relays may still restore what it has lost.
var errHealing = fmt.Errorf("fleet: the store has been away, and relays announce what it had: %w", alloc.ErrStoreUnavailable)

// notFoundUnlessHealing returns notFound, or alloc.ErrStoreUnavailable while relays may
// still restore what the store has lost.
func (f *Fleet) notFoundUnlessHealing(notFound error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.view.healing(f.now()) {
		return errHealing
	}
	return notFound
}

// Codes returns the directory as the store of an alloc.Service. It differs in
// one thing: for [HealFor] after the store has failed or lost data, a missing code is
// alloc.ErrStoreUnavailable instead of alloc.ErrCodeNotFound, because the host's relay
// may announce it again. So a valid code is not rejected, and no host gets a second one.
func (f *Fleet) Codes() alloc.Store { return codes{f.directory, f} }

type codes struct {
	Directory
	fleet *Fleet
}

// HostOf returns the host that code leads to.
func (c codes) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	host, err := c.Directory.HostOf(ctx, t, code)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.fleet.notFoundUnlessHealing(err)
	}
	return host, err
}

// CodeOf returns the code of host.
func (c codes) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	code, err := c.Directory.CodeOf(ctx, t, host)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		err = c.fleet.notFoundUnlessHealing(err)
	}
	return code, err
}
