package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/hooks"
	"github.com/ferryrelay/ferry/internal/identity"
	"github.com/ferryrelay/ferry/internal/quota"
)

// players is who may play and who hears of it, beyond the tokens in the settings.
// What the settings say of it are terms, which a reload replaces as a whole; what
// goes on from one to the next is here. Its fields are fixed by newPlayers, but
// for those that say otherwise.
type players struct {
	mode  Mode
	log   *slog.Logger
	terms atomic.Pointer[terms] // in force

	relay  counter // set before anybody asks; nil in an API process
	rates  rates
	leases leases // of an API process

	sender *hooks.Webhooks      // nil before anybody was to be told; who reloads has it
	aimed  telling              // whom sender tells; who reloads has it
	begins chan *hooks.Webhooks // of one place: sender, when it has to run
}

// counter returns what projects use of the relay in this process: engine.Server.
type counter interface {
	Usage(ctx context.Context, projects ...string) ([]engine.Usage, error)
}

// newPlayers returns what the settings ask for. It reads the files of secrets and
// connects to nothing. A nil logger is for a look at the settings.
func newPlayers(c *config.Config, mode Mode, log *slog.Logger) (*players, error) {
	p := &players{mode: mode, log: log, begins: make(chan *hooks.Webhooks, 1)}
	verifier, err := identity.New(identity.Config{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	guard, err := quota.NewGuard(quota.Config{Usage: p.usage, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	p.terms.Store(&terms{verifier: verifier, guard: guard})
	first, _, err := p.plan(c)
	if err != nil {
		return nil, err
	}
	p.adopt(first)
	return p, nil
}

// usage is what a project uses: of the relay in this process, or of the fleet.
func (p *players) usage(ctx context.Context, project string) (quota.Usage, error) {
	if p.mode == API {
		return p.leases.usage(ctx, project)
	}
	all, err := p.relay.Usage(ctx, project)
	u := quota.Usage{BytesPerSecond: p.rates.of(project)}
	for _, t := range all {
		u.Allocations += t.Allocations
		u.Players += t.Players
	}
	return u, err
}

// metered reports whether anybody has a quota of bandwidth.
func (p *players) metered() bool { return p.terms.Load().metered }

// admit is asked before each reservation. Quotas come first: they cost nothing.
func (p *players) admit(ctx context.Context, a alloc.AdmissionRequest) error {
	t := p.terms.Load()
	if err := t.guard.Admit(ctx, a); err != nil {
		return err
	}
	if t.admission != nil {
		return t.admission.Admit(ctx, a)
	}
	return nil
}

// The following are told what happens, by many goroutines or by the relay, and
// do not block.

func (p *players) reserved(m alloc.ReservationEvent) {
	if w := p.terms.Load().webhooks; w != nil {
		w.Send(hooks.EventOf(m))
	}
}

func (p *players) bound(e engine.BindEvent) {
	if w := p.terms.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Bound, Allocation: e.ID.String(), Role: e.Role.String()})
	}
}

func (p *players) connected(e engine.ConnectEvent) {
	if w := p.terms.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Joined, Allocation: e.Joiner.String(), Peer: e.Host.String()})
	}
}

func (p *players) disconnected(e engine.DisconnectEvent) {
	if w := p.terms.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Left, Allocation: e.From.String(), Peer: e.To.String()})
	}
}

func (p *players) ended(e engine.EndEvent) {
	if w := p.terms.Load().webhooks; w != nil {
		w.Send(hooks.Event{
			Type: hooks.Ended, Allocation: e.ID.String(), Role: e.Role.String(), Reason: e.Reason.String(),
		})
	}
}

// run is what goes on for the sake of players, until ctx ends. What waits for
// webhooks that nobody wants any more is still sent.
func (p *players) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { p.terms.Load().verifier.Run(ctx) })
	if p.mode.relays() && p.mode.answers() {
		all.Go(func() { p.rates.run(ctx, p.metered, p.relay.Usage) })
	}
	select {
	case w := <-p.begins:
		all.Go(func() { w.Run(ctx) })
	case <-ctx.Done():
	}
}

// close is for when nobody calls any more.
func (p *players) close() {
	if a := p.terms.Load().admission; a != nil {
		a.Close()
	}
}

// sayWho warns of settings that let in more than they may have been meant to.
func sayWho(c *config.Config) (all []string) {
	for i, issuer := range c.Issuers {
		if issuer.Preset == "development" && issuer.Project == "" {
			all = append(all, fmt.Sprintf("issuers[%d]: whoever has the HS256 key makes tokens for every project, and for backends too; it is meant for development", i))
		}
	}
	return all
}
