package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// maxTries bounds the relays that one reservation asks: those that say quickly
// that they are full would otherwise be asked for two seconds.
const maxTries = 8

// leastTry is the least time in which a relay may be expected to answer.
const leastTry = 100 * time.Millisecond

// errLate is what is answered when the time of a reservation is over.
var errLate = fmt.Errorf("fleet: no relay made the reservation in time: %w", alloc.ErrUnavailable)

// ReserveHost places a host and reserves it there. Errors: alloc.ErrRegion,
// alloc.ErrFull, alloc.ErrMaxConnections if no relay takes so many,
// alloc.ErrTenantName, and alloc.ErrUnavailable.
func (f *Fleet) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, ReserveWithin)
	defer cancel()
	p := placing{fleet: f, need: f.need(r)}
	r.Region, r.ClientAddress = "", netip.Addr{} // A relay has no use for them.
	for range maxTries {
		c, at, err := p.next()
		if err != nil {
			return alloc.Reservation{}, p.verdict(err)
		}
		res, err := f.reserveAt(ctx, c, r)
		if err == nil {
			return f.settle(ctx, c, res, p.need.Seats, at)
		}
		p.failed(c, at, err, errors.Is(ctx.Err(), context.Canceled))
		if errors.Is(err, alloc.ErrTenantName) {
			return alloc.Reservation{}, err
		}
		if left, ok := timeLeft(ctx); !ok || left < leastTry {
			return alloc.Reservation{}, p.verdict(errLate)
		}
	}
	return alloc.Reservation{}, p.verdict(alloc.ErrFull)
}

// need returns what placement is asked for.
func (f *Fleet) need(r alloc.HostRequest) Request {
	q := Request{Region: r.Region, Seats: r.MaxConnections + 1}
	if q.Region != "" {
		return q
	}
	for _, region := range []string{f.defaults[r.Tenant.Project], f.hints.region(r.ClientAddress)} {
		if region != "" {
			q.Prefer = append(q.Prefer, region)
		}
	}
	return q
}

// reserveAt asks one relay, for half of the time that is left: another one may
// be needed, and the store has to hear of it.
func (f *Fleet) reserveAt(ctx context.Context, c Candidate, r alloc.HostRequest) (alloc.Reservation, error) {
	left, ok := timeLeft(ctx)
	if !ok {
		return alloc.Reservation{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, max(left/2, leastTry))
	defer cancel()
	f.counts.tries.Add(1)
	return f.dialer.Relay(c.Node).ReserveHost(ctx, r)
}

// settle tells the store where a host is. Without that nobody could join it, so
// if it fails the reservation is given up.
func (f *Fleet) settle(
	ctx context.Context, c Candidate, res alloc.Reservation, seats int, at time.Duration,
) (alloc.Reservation, error) {
	if err := f.directory.SetHome(ctx, res.ID, Home{Relay: c.Relay, Boot: c.Boot}); err != nil {
		f.counts.homeless.Add(1)
		f.release(c.Node, res.ID)
		f.mu.Lock()
		f.view.takeBack(c.Relay, c.Boot, seats, at)
		f.mu.Unlock()
		return alloc.Reservation{}, unavailable("remember where the host is", alloc.ErrStoreUnavailable, err)
	}
	f.counts.placed.Add(1)
	res.Region = c.Region
	return res, nil
}

// timeLeft returns the time until the deadline of ctx, which has one, and
// whether it still lasts.
func timeLeft(ctx context.Context) (time.Duration, bool) {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline), ctx.Err() == nil
}

// placing is the search for one host's place. It belongs to its request.
type placing struct {
	fleet *Fleet
	need  Request
	tried []alloc.RelayID
	// What the relays answered that were asked.
	silent, tooMany error
}

// next chooses a relay and takes its seats in the view, until the time returned
// says when that was.
func (p *placing) next() (Candidate, time.Duration, error) {
	f := p.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if err := f.ready(now); err != nil {
		return Candidate{}, 0, err
	}
	f.view.age(now)
	i, err := p.choose()
	if err != nil {
		return Candidate{}, 0, err
	}
	c := f.view.nodes[i]
	f.view.give(i, p.need.Seats, now)
	p.tried = append(p.tried, c.Relay)
	return c, now, nil
}

// choose returns the best node that was not tried yet. The caller holds mu.
func (p *placing) choose() (int, error) {
	nodes := p.fleet.view.nodes
	order, err := Place(nodes, p.need, len(p.tried)+2, p.fleet.rnd)
	if err != nil {
		return 0, err
	}
	for _, i := range order {
		if !slices.Contains(p.tried, nodes[i].Relay) {
			return i, nil
		}
	}
	return 0, alloc.ErrFull
}

// failed learns from a relay's refusal or silence. If the caller has left, or
// asked what no relay does, that says nothing about this one.
func (p *placing) failed(c Candidate, at time.Duration, err error, left bool) {
	f := p.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view.takeBack(c.Relay, c.Boot, p.need.Seats, at)
	now := event{f.now(), true}
	f.view.learn(c.Relay, c.Boot, func(n *note) {
		switch {
		case errors.Is(err, alloc.ErrFull):
			f.counts.full.Add(1)
			n.full, n.room = now, p.need.Seats-1
		case errors.Is(err, alloc.ErrDraining):
			f.counts.draining.Add(1)
			n.drains = now
		case errors.Is(err, alloc.ErrMaxConnections):
			p.tooMany = err
		case left, errors.Is(err, alloc.ErrTenantName):
		default:
			f.counts.silent.Add(1)
			f.log.Warn("a relay did not make a reservation", "relay", c.Relay, "control", c.Control, "error", err)
			p.silent, n.silent = err, now
		}
	})
}

// verdict returns what the search as a whole came to.
func (p *placing) verdict(err error) error {
	switch {
	case errors.Is(err, alloc.ErrFull) && p.silent != nil:
		err = unavailable("reserve a host", alloc.ErrUnavailable, p.silent)
	case errors.Is(err, alloc.ErrFull) && p.tooMany != nil:
		err = p.tooMany
	}
	switch {
	case errors.Is(err, alloc.ErrFull):
		p.fleet.counts.refused.Add(1)
		return fmt.Errorf("fleet: %d relays were asked: %w", len(p.tried), alloc.ErrFull)
	case errors.Is(err, alloc.ErrUnavailable):
		p.fleet.counts.unavailable.Add(1)
	}
	return err
}
