package game

import (
	"context"
	"errors"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Placer implements alloc.Relay: it is a small relay, and puts a match of more than four players on Large.
type Placer struct {
	alloc.Relay
	Large alloc.Relay

	mu    sync.Mutex
	homes map[proto.AllocationID]alloc.Relay
}

func (p *Placer) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	relay := p.Relay
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
	return p.Relay
}

func (p *Placer) ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error) {
	return p.home(r.Host).ReserveJoiner(ctx, r)
}

func (p *Placer) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	return p.home(id).Describe(ctx, id)
}

func (p *Placer) Observe(o alloc.Observer) error {
	return errors.Join(p.Relay.Observe(o), p.Large.Observe(o))
}
