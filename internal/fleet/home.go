package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// errAway is what is answered about a host whose relay may yet come back.
var errAway = fmt.Errorf("fleet: the host's relay does not announce itself: %w", alloc.ErrUnavailable)

// ReserveJoiner reserves a place with the host's relay. Errors: as alloc.Relay
// says; a relay that died is alloc.ErrUnavailable while its players may come
// back, and alloc.ErrNotFound afterwards.
func (f *Fleet) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	c, err := f.home(ctx, r.Host)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res, err := f.dialer.Relay(c.Node).ReserveJoiner(ctx, r)
	if err != nil {
		return alloc.Reservation{}, answered(err)
	}
	res.Region = c.Region
	return res, nil
}

// Describe asks the relay of a host about it. Joiners are nowhere but with
// their relay, so one of them is alloc.ErrNotFound. Errors: as ReserveJoiner's.
func (f *Fleet) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	c, err := f.home(ctx, id)
	if err != nil {
		return alloc.Description{}, err
	}
	d, err := f.dialer.Relay(c.Node).Describe(ctx, id)
	return d, answered(err)
}

// Keep tells a host's relay its join code; it is for alloc.ServiceConfig.Keep.
// Errors: as ReserveJoiner's.
func (f *Fleet) Keep(ctx context.Context, host proto.AllocationID, code string) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	c, err := f.home(ctx, host)
	if err != nil {
		return err
	}
	return answered(f.dialer.Relay(c.Node).KeepCode(ctx, host, code))
}

// answered returns what a relay said, or that it did not.
func answered(err error) error {
	for _, verdict := range []error{
		alloc.ErrNotFound, alloc.ErrFull, alloc.ErrDraining, alloc.ErrCodeMalformed, alloc.ErrTenantName,
		alloc.ErrUnavailable,
	} {
		if err == nil || errors.Is(err, verdict) {
			return err
		}
	}
	return unavailable("ask the host's relay", alloc.ErrUnavailable, err)
}

// home returns the relay of a host, if it lives.
func (f *Fleet) home(ctx context.Context, host proto.AllocationID) (Candidate, error) {
	h, err := f.directory.HomeOf(ctx, host)
	switch {
	case errors.Is(err, alloc.ErrNotFound):
		return Candidate{}, f.doubt(alloc.ErrNotFound)
	case err != nil:
		return Candidate{}, unavailable("look up the host's relay", alloc.ErrStoreUnavailable, err)
	}
	c, verdict := f.lives(h.Relay)
	if verdict == nil || !errors.Is(verdict, alloc.ErrNotFound) {
		return c, verdict
	}
	// It may have come into being since the last poll, and the verdict is final.
	if !f.refresh(ctx) {
		return Candidate{}, errAway
	}
	return f.lives(h.Relay)
}

// lives returns the relay, errAway for one that may come back, or
// alloc.ErrNotFound.
func (f *Fleet) lives(relay alloc.RelayID) (Candidate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	f.view.age(now)
	i, ok := f.view.find(relay)
	switch {
	case ok && f.view.nodes[i].Age <= DeadAfter:
		return f.view.nodes[i], nil
	case ok && f.view.nodes[i].Age <= DeadAfter+f.view.nodes[i].RecoverFor, !f.view.settled(now):
		return Candidate{}, errAway
	}
	return Candidate{}, alloc.ErrNotFound
}

// doubt returns notFound, or alloc.ErrStoreUnavailable while the store may be about
// to get back what it has lost.
func (f *Fleet) doubt(notFound error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.view.healing(f.now()) {
		return fmt.Errorf("fleet: the store has been away, and relays announce what it had: %w", alloc.ErrStoreUnavailable)
	}
	return notFound
}
