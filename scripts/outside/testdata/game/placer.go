package game

import (
	"context"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Placer implements alloc.Relay and alloc.ObservableRelay: it puts a match of more than four players on
// Large.
type Placer struct {
	Small, Large alloc.Relay

	mu    sync.Mutex
	homes map[proto.AllocationID]alloc.Relay
}

var _ alloc.ObservableRelay = (*Placer)(nil)

func (p *Placer) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	relay := p.Small
	if r.MaxConnections > 4 {
		relay = p.Large
	}
	res, err := relay.ReserveHost(ctx, r)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.homes == nil {
			p.homes = make(map[proto.AllocationID]alloc.Relay)
		}
		p.homes[res.ID] = relay
	}
	return res, err
}

func (p *Placer) home(host proto.AllocationID) alloc.Relay {
	p.mu.Lock()
	defer p.mu.Unlock()
	if relay, ok := p.homes[host]; ok {
		return relay
	}
	return p.Small
}

func (p *Placer) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	return p.home(r.Host).ReserveJoiner(ctx, r)
}

func (p *Placer) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	return p.home(id).Describe(ctx, id)
}

func (p *Placer) Observe(o alloc.Observer) {
	for _, relay := range []alloc.Relay{p.Small, p.Large} {
		relay.(alloc.ObservableRelay).Observe(o)
	}
}
