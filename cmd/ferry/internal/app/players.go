package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/hooks"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/alloc/identity"
	"github.com/ferryrelay/ferry/alloc/quota"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
	"github.com/ferryrelay/ferry/engine"
)

// players is who may play and who hears of it, beyond the tokens in the settings.
// Its fields are fixed by newPlayers; each is nil if the settings do not ask for
// it.
type players struct {
	verifier  *identity.Verifier
	admission *hooks.Admission
	webhooks  *hooks.Webhooks
	guard     *quota.Guard
	tally     *quota.Tally // counts for guard, where this process relays
	rates     *rates       // do so for bandwidth
	leases    *leases      // do so in a fleet
}

// newPlayers returns what the settings ask for. It reads the files of secrets and
// connects to nothing. A nil logger is for a look at the settings. A relay of a
// fleet lets in whom an API process has let in, so that it only tells.
func newPlayers(c *config.Config, mode Mode, log *slog.Logger) (p players, err error) {
	if mode == Relay {
		c = &config.Config{
			WebhookURL: c.WebhookURL, WebhookSecretFile: c.WebhookSecretFile, HooksPlainHTTP: c.HooksPlainHTTP,
		}
	}
	var errs []error
	if len(c.Issuers) > 0 {
		p.verifier, err = identity.New(identity.Config{Issuers: issuers(c), Logger: log})
		errs = append(errs, err)
	}
	if c.AdmissionURL != "" {
		p.admission, err = newAdmission(c, log)
		errs = append(errs, err)
	}
	if c.WebhookURL != "" {
		p.webhooks, err = newWebhooks(c, log)
		errs = append(errs, err)
	}
	if len(c.Quotas) > 0 {
		errs = append(errs, p.limit(c, mode, log))
	}
	if err := errors.Join(errs...); err != nil {
		return players{}, fmt.Errorf("app: %w", err)
	}
	return p, nil
}

// issuers turns the settings into rules. What they leave empty comes from the
// preset.
func issuers(c *config.Config) (all []identity.Issuer) {
	for _, i := range c.Issuers {
		rule := identity.Issuer{
			Issuer: i.Issuer, Audience: i.Audience, JWKSURL: i.JWKSURL, HS256Key: []byte(i.HS256Key),
			ProjectClaim: i.ProjectClaim, Project: i.Project,
			EnvironmentClaim: i.EnvironmentClaim, EnvironmentAudience: i.EnvironmentAudience, Environment: i.Environment,
			PlayerClaim: i.PlayerClaim, KindClaim: i.KindClaim, Server: i.Kind == "server",
		}
		switch i.Preset {
		case "unity":
			rule = rule.Or(identity.Unity(i.Project))
		case "development":
			rule = rule.Or(identity.Development(nil))
		}
		all = append(all, rule)
	}
	return all
}

func newAdmission(c *config.Config, log *slog.Logger) (*hooks.Admission, error) {
	var secret []byte
	if c.AdmissionSecretFile != "" {
		text, err := config.ReadSecret(c.AdmissionSecretFile)
		if err != nil {
			return nil, fmt.Errorf("admission_secret_file: %w", err)
		}
		secret = []byte(text)
	}
	a, err := hooks.NewAdmission(hooks.AdmissionConfig{
		URL: c.AdmissionURL, AllowPrivate: c.HooksPlainHTTP, Secret: secret,
		Timeout: c.AdmissionTimeout, FailOpen: c.AdmissionFailOpen, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("admission_url: %w", err)
	}
	return a, nil
}

func newWebhooks(c *config.Config, log *slog.Logger) (*hooks.Webhooks, error) {
	if c.WebhookSecretFile == "" {
		return nil, errors.New("webhook_url: webhook_secret_file is required, so that its receiver can tell who calls")
	}
	secret, err := config.ReadSecret(c.WebhookSecretFile)
	if err != nil {
		return nil, fmt.Errorf("webhook_secret_file: %w", err)
	}
	w, err := hooks.NewWebhooks(hooks.WebhookConfig{
		URL: c.WebhookURL, AllowPrivate: c.HooksPlainHTTP, Secret: []byte(secret), Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("webhook_url: %w", err)
	}
	return w, nil
}

// limit makes the guard of quotas, and who counts for it.
func (p *players) limit(c *config.Config, mode Mode, log *slog.Logger) (err error) {
	limits := make(map[string]quota.Limits)
	for i, q := range c.Quotas {
		if _, twice := limits[q.Project]; twice {
			return fmt.Errorf("quotas[%d]: project %q has one already", i, q.Project)
		}
		limits[q.Project] = quota.Limits{
			Allocations: q.Allocations, Players: q.Players, BytesPerSecond: int64(q.BytesPerSecond), Inactive: q.Inactive,
		}
	}
	var usage func(context.Context, string) (quota.Usage, error)
	if mode == API {
		p.leases = new(leases)
		usage = p.leases.usage
	} else {
		p.tally, p.rates = quota.NewTally(limits, c.BindTimeout, nil), new(rates)
		usage = p.usage
	}
	p.guard, err = quota.NewGuard(quota.Config{Limits: limits, Usage: usage, Logger: log})
	return err
}

// usage is what a project uses of the relay in this process.
func (p *players) usage(ctx context.Context, project string) (quota.Usage, error) {
	u, err := p.tally.Usage(ctx, project)
	u.BytesPerSecond = p.rates.of(project)
	return u, err
}

// authenticate returns who knows the tokens of issuers, nil if nobody does.
func (p *players) authenticate() func(context.Context, string) (httpapi.Identity, error) {
	if p.verifier == nil {
		return nil
	}
	return func(ctx context.Context, token string) (httpapi.Identity, error) {
		who, err := p.verifier.Verify(ctx, token)
		switch {
		case errors.Is(err, identity.ErrExpired):
			return httpapi.Identity{}, fmt.Errorf("%w: %w", httpapi.ErrTokenExpired, err)
		case errors.Is(err, identity.ErrKeysUnavailable):
			return httpapi.Identity{}, fmt.Errorf("%w: %w", httpapi.ErrCannotTell, err)
		case err != nil:
			return httpapi.Identity{}, err
		}
		kind := httpapi.KindPlayer
		if who.Server {
			kind = httpapi.KindServer
		}
		return httpapi.Identity{Tenant: who.Tenant, Player: who.Player, Kind: kind}, nil
	}
}

// admit is asked before each reservation. Quotas come first: they cost nothing.
func (p *players) admit(ctx context.Context, a alloc.Ask) error {
	if p.guard != nil {
		if err := p.guard.Admit(ctx, a); err != nil {
			return err
		}
	}
	if p.admission != nil {
		return p.admission.Admit(ctx, a)
	}
	return nil
}

// The following are told what happens, by many goroutines or by the relay, and
// do not block.

func (p *players) reserved(m alloc.Made) {
	if p.tally != nil {
		p.tally.Reserved(m)
	}
	if p.webhooks != nil {
		p.webhooks.Send(hooks.EventOf(m))
	}
}

func (p *players) bound(e engine.BindEvent) {
	if p.tally != nil {
		p.tally.Bound(e.ID)
	}
	if p.webhooks != nil {
		p.webhooks.Send(hooks.Event{Type: hooks.Bound, Allocation: e.ID.String(), Role: e.Role.String()})
	}
}

func (p *players) connected(e engine.ConnectEvent) {
	if p.webhooks != nil {
		p.webhooks.Send(hooks.Event{Type: hooks.Joined, Allocation: e.Joiner.String(), Peer: e.Host.String()})
	}
}

func (p *players) disconnected(e engine.DisconnectEvent) {
	if p.webhooks != nil {
		p.webhooks.Send(hooks.Event{Type: hooks.Left, Allocation: e.From.String(), Peer: e.To.String()})
	}
}

func (p *players) ended(e engine.EndEvent) {
	if p.tally != nil {
		p.tally.Ended(e.ID)
	}
	if p.webhooks != nil {
		p.webhooks.Send(hooks.Event{
			Type: hooks.Ended, Allocation: e.ID.String(), Role: e.Role.String(), Reason: e.Reason.String(),
		})
	}
}

// watches are what goes on for the sake of players.
func (p *players) watches() (all []func(context.Context)) {
	if p.verifier != nil {
		all = append(all, p.verifier.Run)
	}
	if p.webhooks != nil {
		all = append(all, p.webhooks.Run)
	}
	return all
}

// close is for when nobody calls any more.
func (p *players) close() {
	if p.admission != nil {
		p.admission.Close()
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
