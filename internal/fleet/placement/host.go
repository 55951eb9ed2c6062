package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// maxTries bounds the relays that one reservation asks. Otherwise relays that quickly
// report that they are full would be asked for two seconds.
const maxTries = 8

// minTryTimeout is the least time in which a relay can be expected to answer.
const minTryTimeout = 100 * time.Millisecond

var errTimeout = fmt.Errorf("fleet: no relay made the reservation in time: %w", alloc.ErrUnavailable)

// ReserveHost places a host and reserves it there. Errors: those of Place,
// alloc.ErrMaxConnections if no relay takes so many,
// alloc.ErrTenantName, alloc.ErrPlayerLimit, and alloc.ErrUnavailable. A relay that has
// reached a limit of the player ends the search: others would let it have as many again.
func (f *Fleet) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, ReserveWithin)
	defer cancel()
	p := hostSearch{fleet: f, request: f.placementRequest(r)}
	r.Region = "" // relays ignore it
	for range maxTries {
		c, at, err := p.place()
		if err != nil {
			return alloc.Reservation{}, p.result(err)
		}
		res, err := f.reserveAt(ctx, c, r)
		if err == nil {
			if res, err = f.recordHome(ctx, &c, res); err != nil {
				f.relays.undoGrant(&c, p.request.Seats, at, nil)
				return alloc.Reservation{}, err
			}
			f.counts.placed.Add(1)
			return res, nil
		}
		p.recordFailure(&c, at, err, errors.Is(ctx.Err(), context.Canceled))
		if errors.Is(err, alloc.ErrTenantName) || errors.Is(err, alloc.ErrPlayerLimit) {
			return alloc.Reservation{}, err
		}
		if left, ok := timeLeft(ctx); !ok || left < minTryTimeout {
			return alloc.Reservation{}, p.result(errTimeout)
		}
	}
	return alloc.Reservation{}, p.result(alloc.ErrFull)
}

func (f *Fleet) placementRequest(r alloc.HostRequest) Request {
	return Request{Region: r.Region, Seats: r.MaxConnections + 1}
}

// reserveAt asks one relay, for half of the time that is left: another try may be
// needed, and the home has to be stored.
func (f *Fleet) reserveAt(ctx context.Context, c Candidate, r alloc.HostRequest) (alloc.Reservation, error) {
	left, ok := timeLeft(ctx)
	if !ok {
		return alloc.Reservation{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, max(left/2, minTryTimeout))
	defer cancel()
	f.counts.tries.Add(1)
	return f.dialer.Relay(c.Node).ReserveHost(ctx, r)
}

// recordHome stores the home of a reservation, and returns it with its region. If this fails, no player
// could join the host, so the reservation is ended.
func (f *Fleet) recordHome(ctx context.Context, c *Candidate, res alloc.Reservation) (alloc.Reservation, error) {
	if err := f.directory.SetHome(ctx, res.ID, Home{Relay: c.Relay, Boot: c.Boot}); err != nil {
		f.counts.homeFailed(c.Region)
		f.unused.enqueue(c.Node, res.ID)
		return alloc.Reservation{}, unavailable("remember where the host is", alloc.ErrStoreUnavailable, err)
	}
	res.Region = c.Region
	return res, nil
}

func timeLeft(ctx context.Context) (time.Duration, bool) {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline), ctx.Err() == nil
}

// hostSearch is the search for a relay for one host. It belongs to one goroutine.
type hostSearch struct {
	fleet   *Fleet
	request Request
	tried   []alloc.RelayID
	// The last errors of relays that did not answer, and that refused MaxConnections.
	noAnswer, tooMany error
}

// place grants a relay that was not tried yet.
func (p *hostSearch) place() (Candidate, time.Duration, error) {
	c, at, err := p.fleet.relays.grant(p.request, p.tried)
	if err == nil {
		p.tried = append(p.tried, c.Relay)
	}
	return c, at, err
}

// recordFailure undoes the grant and records a relay's refusal or missing answer. An
// error that the caller caused, by leaving or by its request, says nothing about the
// relay.
func (p *hostSearch) recordFailure(c *Candidate, at time.Duration, err error, left bool) {
	f := p.fleet
	f.relays.undoGrant(c, p.request.Seats, at, func(n *observation, now event) {
		switch {
		case errors.Is(err, alloc.ErrFull):
			f.counts.full.Add(1)
			n.full, n.freeSeats = now, p.request.Seats-1
		case errors.Is(err, alloc.ErrDraining):
			f.counts.draining.Add(1)
			n.draining = now
		case errors.Is(err, alloc.ErrMaxConnections):
			p.tooMany = err
		case left, errors.Is(err, alloc.ErrTenantName), errors.Is(err, alloc.ErrPlayerLimit):
		default:
			n.silent++
			f.log.Warn("a relay did not make a reservation", "relay", c.Relay, "control", c.Control, "error", err)
			p.noAnswer, n.noAnswer = err, now
		}
	})
}

func (p *hostSearch) result(err error) error {
	switch {
	case !isRefusal(err):
	case p.noAnswer != nil:
		err = unavailable("reserve a host", alloc.ErrUnavailable, p.noAnswer)
	case p.tooMany != nil:
		err = p.tooMany
	default:
		err = fmt.Errorf("fleet: %d relays were asked: %w", len(p.tried), err)
	}
	p.fleet.counts.refuse(p.request.Region, err)
	return err
}

// The limits of releasing reservations. A reservation that does not fit into the queue
// expires unbound, after 10 s by default.
const (
	releaseQueue  = 1024
	releaseAtOnce = 4
)

// release is a reservation that no client got.
type release struct {
	node Node
	host proto.AllocationID
}

// unusedReservations ends reservations that no client got, in the background.
type unusedReservations struct {
	dialer            Dialer
	log               *slog.Logger
	queue             chan release
	released, dropped atomic.Uint64
}

// enqueue ends a reservation without waiting for the relay.
func (u *unusedReservations) enqueue(n Node, host proto.AllocationID) {
	select {
	case u.queue <- release{n, host}:
	default:
		u.dropped.Add(1)
	}
}

func (u *unusedReservations) run(ctx context.Context) {
	for {
		select {
		case r := <-u.queue:
			u.end(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

func (u *unusedReservations) end(ctx context.Context, r release) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := u.dialer.Relay(r.node).End(ctx, r.host); err != nil {
		u.dropped.Add(1)
		u.log.Debug("a reservation is left to lapse", "relay", r.node.Relay, "error", err)
		return
	}
	u.released.Add(1)
}
