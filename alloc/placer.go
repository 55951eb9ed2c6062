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

type placer struct {
	relays []Relay
	order  func(HostRequest, []Relay) []Relay
	turn   atomic.Uint64
}

// NewPlacer returns a Relay made of several in this program: a host gets one of them, and its joiners
// follow. Relays of other machines need the ferry binary's fleet. order returns those that may take a host, the best one
// first; a host goes to the first that is not full, draining or unavailable. It is called
// concurrently and must not change its argument. Nil: in turn those relays whose [RelayConfig] has the
// region of the host, or all if none has. The error is an [ErrConfig]: there is no relay, or one is nil.
func NewPlacer(relays []Relay, order func(r HostRequest, relays []Relay) []Relay) (Relay, error) {
	if len(relays) == 0 {
		return nil, fmt.Errorf("%w: a placer without relays", ErrConfig)
	}
	if i := slices.IndexFunc(relays, func(r Relay) bool { return unset.IsNil(r) }); i >= 0 {
		return nil, fmt.Errorf("%w: relay %d of a placer is nil", ErrConfig, i)
	}
	p := &placer{relays: append([]Relay(nil), relays...), order: order}
	if order == nil {
		p.order = p.inTurn
	}
	return p, nil
}

func (p *placer) inTurn(r HostRequest, relays []Relay) []Relay {
	there := slices.DeleteFunc(slices.Clone(relays), func(relay Relay) bool {
		return relay.RelayConfig().Region != r.Region
	})
	if len(there) > 0 {
		relays = there
	}
	n := int(p.turn.Add(1)-1) % len(relays)
	return append(append([]Relay(nil), relays[n:]...), relays[:n]...)
}

// RelayConfig says whether a relay has host migration, and nothing in which they may differ.
func (p *placer) RelayConfig() RelayConfig {
	return RelayConfig{HostMigration: slices.ContainsFunc(p.relays, func(r Relay) bool { return r.RelayConfig().HostMigration })}
}

// ReserveHost returns the error of the last relay that it has asked.
func (p *placer) ReserveHost(ctx context.Context, r HostRequest) (res Reservation, err error) {
	err = ErrUnavailable
	for _, relay := range p.order(r, p.relays) {
		res, err = relay.ReserveHost(ctx, r)
		if !errors.Is(err, ErrFull) && !errors.Is(err, ErrDraining) && !errors.Is(err, ErrUnavailable) {
			return res, err
		}
	}
	return Reservation{}, err
}

func (p *placer) ReserveJoiner(ctx context.Context, r JoinerRequest) (Reservation, error) {
	return ask(p, func(relay Relay) (Reservation, error) { return relay.ReserveJoiner(ctx, r) })
}

func (p *placer) Describe(ctx context.Context, id proto.AllocationID) (Description, error) {
	return ask(p, func(relay Relay) (Description, error) { return relay.Describe(ctx, id) })
}

func (p *placer) MigrateHost(ctx context.Context, r MigrationRequest) (Reservation, error) {
	return ask(p, func(relay Relay) (Reservation, error) { return relay.MigrateHost(ctx, r) })
}

func (p *placer) LeaveHost(ctx context.Context, r LeaveRequest) error {
	_, err := ask(p, func(relay Relay) (struct{}, error) { return struct{}{}, relay.LeaveHost(ctx, r) })
	return err
}

// ask returns the answer of the relay that has the allocation. One that may still have it, since
// it recovers, decides over those that have it not. One without host migration knows no match.
func ask[T any](p *placer, call func(Relay) (T, error)) (T, error) {
	var doubt error
	for _, relay := range p.relays {
		answer, err := call(relay)
		switch {
		case errors.Is(err, ErrUnavailable):
			doubt = err
		case !errors.Is(err, ErrNotFound) && !errors.Is(err, errors.ErrUnsupported):
			return answer, err
		}
	}
	var none T
	if doubt != nil {
		return none, doubt
	}
	return none, ErrNotFound
}

// Observe lets all relays call o that can. For any other the program calls OnBind and OnEnd of the
// service.
func (p *placer) Observe(o Observer) error {
	for _, relay := range p.relays {
		if err := relay.Observe(o); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return nil
}
