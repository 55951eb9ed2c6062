package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/hooks"
	"github.com/ferryrelay/ferry/internal/identity"
	"github.com/ferryrelay/ferry/internal/quota"
)

// terms are who may play and who hears of it by one set of settings. They do not
// change. A call goes on with those that it has met.
type terms struct {
	verifier  *identity.Verifier
	trusting  bool             // there are issuers
	admission *hooks.Admission // nil: nobody is asked
	asked     asking           // by admission
	webhooks  *hooks.Webhooks  // nil: nobody is told
	told      telling          // by webhooks
	target    *hooks.Target    // of told; nil where webhooks were made for it
	guard     *quota.Guard
	metered   bool // somebody has a quota of bandwidth
}

// asking and telling are all that the settings say of a program of the operator's,
// its secret included, whose file may have changed where they have not.
type asking struct {
	url      string
	secret   config.Secret
	private  bool
	timeout  time.Duration
	failOpen bool
}

type telling struct {
	url     string
	secret  config.Secret
	private bool
}

// plan returns the terms of these settings, and what has changed of files that
// they name. What stays the same goes on from one to the next: an issuer's keys, an
// admission program's rest. Nothing happens before adopt. A relay of a fleet lets
// in whom an API process has let in, so that it only tells. Whoever plans does so
// alone.
func (p *players) plan(c *config.Config) (next *terms, notes []string, err error) {
	if p.mode == Relay {
		c = &config.Config{
			WebhookURL: c.WebhookURL, WebhookSecretFile: c.WebhookSecretFile, HooksPlainHTTP: c.HooksPlainHTTP,
		}
	}
	was := p.terms.Load()
	next = &terms{trusting: len(c.Issuers) > 0}
	var errs []error
	next.verifier, err = was.verifier.With(issuers(c))
	errs = append(errs, err, next.ask(c, was, p.log), next.tell(c, p.sender, p.log), next.limit(c, was))
	if err := errors.Join(errs...); err != nil {
		return nil, nil, fmt.Errorf("app: %w", err)
	}
	if was.asked.url != "" && next.asked.url == was.asked.url && next.asked.secret != was.asked.secret {
		notes = append(notes, "questions to admission_url are signed with another secret")
	}
	if was.told.url != "" && next.told.url == was.told.url && next.told.secret != was.told.secret {
		notes = append(notes, "messages to webhook_url are signed with another secret")
	}
	return next, notes, nil
}

// adopt puts terms in force that plan has returned last. Calls that have met those
// before end by them. What waits for webhooks goes to whom they now tell.
func (p *players) adopt(next *terms) {
	switch {
	case next.webhooks == nil:
	case p.sender == nil:
		p.sender, p.aimed = next.webhooks, next.told
		p.begins <- p.sender
	case next.told != p.aimed:
		p.aimed = next.told
		p.sender.SetTarget(next.target)
	}
	was := p.terms.Swap(next)
	next.verifier.Activate()
	if was.admission != nil && was.admission != next.admission {
		was.admission.Close()
	}
}

// ask makes the admission, which is the one before if it asks the same.
func (t *terms) ask(c *config.Config, was *terms, log *slog.Logger) (err error) {
	if c.AdmissionURL == "" {
		return nil
	}
	t.asked = asking{url: c.AdmissionURL, private: c.HooksPlainHTTP, timeout: c.AdmissionTimeout, failOpen: c.AdmissionFailOpen}
	var secret []byte // nil: questions are not signed
	if c.AdmissionSecretFile != "" {
		if t.asked.secret, err = config.ReadSecret(c.AdmissionSecretFile); err != nil {
			return fmt.Errorf("admission_secret_file: %w", err)
		}
		secret = []byte(t.asked.secret)
	}
	if t.asked == was.asked {
		t.admission = was.admission
		return nil
	}
	t.admission, err = hooks.NewAdmission(hooks.AdmissionConfig{
		URL: c.AdmissionURL, AllowPrivate: c.HooksPlainHTTP, Secret: secret,
		Timeout: c.AdmissionTimeout, FailOpen: c.AdmissionFailOpen, Logger: log,
	})
	if err != nil {
		return fmt.Errorf("admission_url: %w", err)
	}
	return nil
}

// tell makes the webhooks, or a target for the sender that there is: what waits
// in its queue is not lost.
func (t *terms) tell(c *config.Config, sender *hooks.Webhooks, log *slog.Logger) error {
	if c.WebhookURL == "" {
		return nil
	}
	if c.WebhookSecretFile == "" {
		return errors.New("webhook_url: webhook_secret_file is required, so that its receiver can tell who calls")
	}
	secret, err := config.ReadSecret(c.WebhookSecretFile)
	if err != nil {
		return fmt.Errorf("webhook_secret_file: %w", err)
	}
	t.told = telling{url: c.WebhookURL, secret: secret, private: c.HooksPlainHTTP}
	cfg := hooks.WebhookConfig{
		URL: c.WebhookURL, AllowPrivate: c.HooksPlainHTTP, Secret: []byte(secret), Logger: log,
	}
	if t.webhooks = sender; sender == nil {
		t.webhooks, err = hooks.NewWebhooks(cfg)
	} else {
		t.target, err = hooks.NewTarget(cfg)
	}
	if err != nil {
		return fmt.Errorf("webhook_url: %w", err)
	}
	return nil
}

// limit makes the guard of quotas.
func (t *terms) limit(c *config.Config, was *terms) (err error) {
	limits := make(map[string]quota.Limits)
	for i, q := range c.Quotas {
		if _, twice := limits[q.Project]; twice {
			return fmt.Errorf("quotas[%d]: project %q has one already", i, q.Project)
		}
		limits[q.Project] = quota.Limits{
			Allocations: q.Allocations, Players: q.Players, BytesPerSecond: int64(q.BytesPerSecond), Inactive: q.Inactive,
		}
		t.metered = t.metered || q.BytesPerSecond > 0
	}
	t.guard, err = was.guard.With(limits)
	return err
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

// authenticate returns who knows the tokens of issuers, nil if nobody does.
func (t *terms) authenticate() func(context.Context, string) (httpapi.Identity, error) {
	if !t.trusting {
		return nil
	}
	return func(ctx context.Context, token string) (httpapi.Identity, error) {
		who, err := t.verifier.Verify(ctx, token)
		switch {
		case errors.Is(err, identity.ErrExpired):
			return httpapi.Identity{}, fmt.Errorf("%w: %w", httpapi.ErrTokenExpired, err)
		case errors.Is(err, identity.ErrKeysUnavailable):
			return httpapi.Identity{}, fmt.Errorf("%w: %w", httpapi.ErrAuthUnavailable, err)
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
