package alloc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/base/unset"
	"github.com/ferryrelay/ferry/proto"
)

// Placer is a Relay made of several in this program: a host gets one of them, and its joiners follow.
// It keeps no state. Relays of other machines need the ferry binary's fleet.
type Placer struct {
	relays []Relay
	order  func(HostRequest, []Relay) []Relay
	turn   atomic.Uint64
}

// NewPlacer returns a Placer for these relays. order returns those that may take a host, the best one
// first; a host goes to the first that is not full, draining or unavailable. It is called
// concurrently and must not change its argument. Nil: in turn those relays whose [RelayConfig] has the
// region of the host, or all if none has. The error is an [ErrConfig]: there is no relay, or one is nil.
func NewPlacer(relays []Relay, order func(r HostRequest, relays []Relay) []Relay) (*Placer, error) {
	if len(relays) == 0 {
		return nil, fmt.Errorf("%w: a Placer without relays", ErrConfig)
	}
	if i := slices.IndexFunc(relays, func(r Relay) bool { return unset.IsNil(r) }); i >= 0 {
		return nil, fmt.Errorf("%w: relay %d of a Placer is nil", ErrConfig, i)
	}
	p := &Placer{relays: append([]Relay(nil), relays...), order: order}
	if order == nil {
		p.order = p.inTurn
	}
	return p, nil
}

func (p *Placer) inTurn(r HostRequest, relays []Relay) []Relay {
	there := slices.DeleteFunc(slices.Clone(relays), func(relay Relay) bool {
		c, ok := relay.(ConfiguredRelay)
		return !ok || c.RelayConfig().Region != r.Region
	})
	if len(there) > 0 {
		relays = there
	}
	n := int(p.turn.Add(1)-1) % len(relays)
	return append(append([]Relay(nil), relays[n:]...), relays[:n]...)
}

// ReserveHost implements [Relay]. Its error is that of the last relay that it has asked.
func (p *Placer) ReserveHost(ctx context.Context, r HostRequest) (res Reservation, err error) {
	err = ErrUnavailable
	for _, relay := range p.order(r, p.relays) {
		res, err = relay.ReserveHost(ctx, r)
		if !errors.Is(err, ErrFull) && !errors.Is(err, ErrDraining) && !errors.Is(err, ErrUnavailable) {
			return res, err
		}
	}
	return Reservation{}, err
}

// ReserveJoiner implements [Relay].
func (p *Placer) ReserveJoiner(ctx context.Context, r JoinerRequest) (Reservation, error) {
	return ask(p, func(relay Relay) (Reservation, error) { return relay.ReserveJoiner(ctx, r) })
}

// Describe implements [Relay].
func (p *Placer) Describe(ctx context.Context, id proto.AllocationID) (Description, error) {
	return ask(p, func(relay Relay) (Description, error) { return relay.Describe(ctx, id) })
}

// MigrateHost implements [MigrationRelay]. A relay without host migration knows no match.
func (p *Placer) MigrateHost(ctx context.Context, r MigrationRequest) (Reservation, error) {
	return ask(p, func(relay Relay) (Reservation, error) {
		if m, ok := relay.(MigrationRelay); ok {
			return m.MigrateHost(ctx, r)
		}
		return Reservation{}, ErrNotFound
	})
}

// LeaveHost implements [MigrationRelay].
func (p *Placer) LeaveHost(ctx context.Context, r LeaveRequest) error {
	_, err := ask(p, func(relay Relay) (struct{}, error) {
		if m, ok := relay.(MigrationRelay); ok {
			return struct{}{}, m.LeaveHost(ctx, r)
		}
		return struct{}{}, ErrNotFound
	})
	return err
}

// ask returns the answer of the relay that has the allocation. One that may still have it, since
// it recovers, decides over those that have it not.
func ask[T any](p *Placer, call func(Relay) (T, error)) (T, error) {
	var doubt error
	for _, relay := range p.relays {
		answer, err := call(relay)
		switch {
		case errors.Is(err, ErrUnavailable):
			doubt = err
		case !errors.Is(err, ErrNotFound):
			return answer, err
		}
	}
	var none T
	if doubt != nil {
		return none, doubt
	}
	return none, ErrNotFound
}

// Observe implements [ObservableRelay]. All relays that are observable call o; for any other the
// program calls OnBind and OnEnd of the service.
func (p *Placer) Observe(o Observer) {
	for _, relay := range p.relays {
		if r, ok := relay.(ObservableRelay); ok {
			r.Observe(o)
		}
	}
}

var (
	_ MigrationRelay  = (*Placer)(nil)
	_ ObservableRelay = (*Placer)(nil)
)
