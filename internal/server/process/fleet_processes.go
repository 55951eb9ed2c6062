package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
)

const withdrawWithin = time.Second

type processRegistry interface {
	AnnounceAPI(context.Context, placement.APIProcess) ([]placement.SeenAPIProcess, error)
	WithdrawAPI(ctx context.Context, boot uint64) error
}

type apiProcesses struct {
	registry processRegistry
	own      func() placement.APIProcess // without Boot
	boot     uint64
	log      *slog.Logger

	mu     sync.Mutex // guards what follows
	others []placement.SeenAPIProcess
	read   time.Time // when; zero: never
	denied bool      // this was logged
}

func newAPIProcesses(r processRegistry, own func() placement.APIProcess, log *slog.Logger) *apiProcesses {
	return &apiProcesses{registry: r, own: own, boot: rand.Uint64(), log: log}
}

func (p *apiProcesses) run(ctx context.Context) error {
	p.announce(ctx)
	periodic.Run(ctx, placement.HeartbeatEvery, func() { p.announce(ctx) })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
	defer cancel()
	_ = p.registry.WithdrawAPI(ctx, p.boot) // The entry expires.
	return nil
}

func (p *apiProcesses) announce(ctx context.Context) {
	own := p.own()
	own.Boot = p.boot
	all, err := p.registry.AnnounceAPI(ctx, own)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if errors.Is(err, redisstore.ErrNotPermitted) && !p.denied {
			p.denied = true
			p.log.Warn("other API processes are not listed", "error", err)
		}
		return // The client of the store logs that it is away.
	}
	p.others = slices.DeleteFunc(all, func(s placement.SeenAPIProcess) bool { return s.Boot == p.boot })
	p.read = time.Now()
}

func (p *apiProcesses) nodes(storeAway bool) (all []operator.Node) {
	own := p.own()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	started := map[[2]string]time.Time{{own.Name, own.URL}: now.Add(-own.Up)} // the latest, by name and URL
	for _, s := range p.others {
		at := [2]string{s.Name, s.URL}
		if start := p.read.Add(-s.Age - s.Up); start.After(started[at]) {
			started[at] = start
		}
	}
	for _, s := range p.others {
		heard := p.read.Add(-s.Age)
		if started[[2]string{s.Name, s.URL}].After(heard) {
			continue // It crashed, and has started again.
		}
		n := operator.Node{
			ID: s.Name, Role: API.String(), Version: s.Version, State: s.State, API: s.URL,
			Since: heard.Add(-s.Up), LastHeartbeat: heard,
		}
		switch silent := now.Sub(heard) > placement.DeadAfter; {
		case storeAway, silent && s.Age <= placement.DeadAfter: // It may have announced itself since the last reading.
			n.State = operator.StateUnknown
		case silent:
			n.State = operator.StateDead
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b operator.Node) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.API, b.API)) })
	return all
}
