package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/hooks"
	"github.com/ferryrelay/ferry/internal/identity"
	"github.com/ferryrelay/ferry/internal/metrics"
	"github.com/ferryrelay/ferry/internal/quota"
)

// players is who may play and who hears of it, beyond the tokens in the settings.
// What the settings say of it are terms, which a reload replaces as a whole; what
// goes on from one to the next is here. Its fields are fixed by newPlayers, but
// for those that say otherwise.
type players struct {
	mode   Mode
	log    *slog.Logger
	policy atomic.Pointer[policy] // in force

	relay  counter // set before anybody asks; nil in an API process
	rates  rates
	leases leases // of an API process

	sender         *hooks.Webhooks      // nil before anybody was to be told; who reloads has it
	senderSettings webhookSettings      // whom sender tells; who reloads has it
	newSender      chan *hooks.Webhooks // of one place: sender, when it has to run
}

// counter returns what projects use of the relay in this process: engine.Server.
type counter interface {
	Usage(ctx context.Context, projects ...string) ([]engine.Usage, error)
}

// newPlayers returns what the settings ask for. It reads the files of secrets and
// connects to nothing. A nil logger is for a look at the settings.
func newPlayers(c *config.Config, mode Mode, log *slog.Logger) (*players, error) {
	p := &players{mode: mode, log: log, newSender: make(chan *hooks.Webhooks, 1)}
	verifier, err := identity.New(identity.Config{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	guard, err := quota.NewGuard(quota.Config{Usage: p.usage, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	p.policy.Store(&policy{verifier: verifier, guard: guard})
	first, _, err := p.nextPolicy(c)
	if err != nil {
		return nil, err
	}
	p.setPolicy(first)
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

// hasBandwidthQuotas reports whether anybody has a quota of bandwidth.
func (p *players) hasBandwidthQuotas() bool { return p.policy.Load().metered }

// admit is asked before each reservation. Quotas come first: they cost nothing.
func (p *players) admit(ctx context.Context, a alloc.AdmissionRequest) error {
	t := p.policy.Load()
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
	if w := p.policy.Load().webhooks; w != nil {
		w.Send(hooks.EventOf(m))
	}
}

func (p *players) bound(e engine.BindEvent) {
	if w := p.policy.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Bound, Allocation: e.ID.String(), Role: e.Role.String()})
	}
}

func (p *players) connected(e engine.ConnectEvent) {
	if w := p.policy.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Joined, Allocation: e.Joiner.String(), Peer: e.Host.String()})
	}
}

func (p *players) disconnected(e engine.DisconnectEvent) {
	if w := p.policy.Load().webhooks; w != nil {
		w.Send(hooks.Event{Type: hooks.Left, Allocation: e.From.String(), Peer: e.To.String()})
	}
}

func (p *players) ended(e engine.EndEvent) {
	if w := p.policy.Load().webhooks; w != nil {
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
	all.Go(func() { p.policy.Load().verifier.Run(ctx) })
	if p.mode.hasRelay() && p.mode.hasAPI() {
		all.Go(func() { p.rates.run(ctx, p.hasBandwidthQuotas, p.relay.Usage) })
	}
	select {
	case w := <-p.newSender:
		all.Go(func() { w.Run(ctx) })
	case <-ctx.Done():
	}
}

// close is for when nobody calls any more.
func (p *players) close() {
	if a := p.policy.Load().admission; a != nil {
		a.Close()
	}
}

// issuerWarnings warns of settings that let in more than they may have been meant to.
func issuerWarnings(c *config.Config) (all []string) {
	for i, issuer := range c.Issuers {
		if issuer.Preset == "development" && issuer.Project == "" {
			all = append(all, fmt.Sprintf("issuers[%d]: whoever has the HS256 key makes tokens for every project, and for backends too; it is meant for development", i))
		}
	}
	return all
}

// policy are who may play and who hears of it by one set of settings. They do not
// change. A call goes on with those that it has met.
type policy struct {
	verifier          *identity.Verifier
	hasIssuers        bool              // there are issuers
	admission         *hooks.Admission  // nil: nobody is asked
	admissionSettings admissionSettings // by admission
	webhooks          *hooks.Webhooks   // nil: nobody is told
	webhookSettings   webhookSettings   // by webhooks
	target            *hooks.Target     // of told; nil where webhooks were made for it
	guard             *quota.Guard
	metered           bool // somebody has a quota of bandwidth
}

// admissionSettings and telling are all that the settings say of a program of the operator's,
// its secret included, whose file may have changed where they have not.
type admissionSettings struct {
	url      string
	secret   config.Secret
	private  bool
	timeout  time.Duration
	failOpen bool
}

type webhookSettings struct {
	url     string
	secret  config.Secret
	private bool
}

// nextPolicy returns the terms of these settings, and what has changed of files that
// they name. What stays the same goes on from one to the next: an issuer's keys, an
// admission program's rest. Nothing happens before adopt. A relay of a fleet lets
// in whom an API process has let in, so that it only tells. Whoever plans does so
// alone.
func (p *players) nextPolicy(c *config.Config) (next *policy, notes []string, err error) {
	if p.mode == Relay {
		c = &config.Config{
			WebhookURL: c.WebhookURL, WebhookSecretFile: c.WebhookSecretFile, HooksPlainHTTP: c.HooksPlainHTTP,
		}
	}
	was := p.policy.Load()
	next = &policy{hasIssuers: len(c.Issuers) > 0}
	var errs []error
	next.verifier, err = was.verifier.With(issuers(c))
	errs = append(errs, err, next.setAdmission(c, was, p.log), next.setWebhooks(c, p.sender, p.log), next.setQuotas(c, was))
	if err := errors.Join(errs...); err != nil {
		return nil, nil, fmt.Errorf("app: %w", err)
	}
	if was.admissionSettings.url != "" && next.admissionSettings.url == was.admissionSettings.url && next.admissionSettings.secret != was.admissionSettings.secret {
		notes = append(notes, "questions to admission_url are signed with another secret")
	}
	if was.webhookSettings.url != "" && next.webhookSettings.url == was.webhookSettings.url && next.webhookSettings.secret != was.webhookSettings.secret {
		notes = append(notes, "messages to webhook_url are signed with another secret")
	}
	return next, notes, nil
}

// setPolicy puts terms in force that plan has returned last. Calls that have met those
// before end by them. What waits for webhooks goes to whom they now tell.
func (p *players) setPolicy(next *policy) {
	switch {
	case next.webhooks == nil:
	case p.sender == nil:
		p.sender, p.senderSettings = next.webhooks, next.webhookSettings
		p.newSender <- p.sender
	case next.webhookSettings != p.senderSettings:
		p.senderSettings = next.webhookSettings
		p.sender.SetTarget(next.target)
	}
	was := p.policy.Swap(next)
	next.verifier.Activate()
	if was.admission != nil && was.admission != next.admission {
		was.admission.Close()
	}
}

// setAdmission makes the admission, which is the one before if it asks the same.
func (t *policy) setAdmission(c *config.Config, was *policy, log *slog.Logger) (err error) {
	if c.AdmissionURL == "" {
		return nil
	}
	t.admissionSettings = admissionSettings{url: c.AdmissionURL, private: c.HooksPlainHTTP, timeout: c.AdmissionTimeout, failOpen: c.AdmissionFailOpen}
	var secret []byte // nil: questions are not signed
	if c.AdmissionSecretFile != "" {
		if t.admissionSettings.secret, err = config.ReadSecret(c.AdmissionSecretFile); err != nil {
			return fmt.Errorf("admission_secret_file: %w", err)
		}
		secret = []byte(t.admissionSettings.secret)
	}
	if t.admissionSettings == was.admissionSettings {
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

// setWebhooks makes the webhooks, or a target for the sender that there is: what waits
// in its queue is not lost.
func (t *policy) setWebhooks(c *config.Config, sender *hooks.Webhooks, log *slog.Logger) error {
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
	t.webhookSettings = webhookSettings{url: c.WebhookURL, secret: secret, private: c.HooksPlainHTTP}
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

// setQuotas makes the guard of quotas.
func (t *policy) setQuotas(c *config.Config, was *policy) (err error) {
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
func (t *policy) authenticate() func(context.Context, string) (httpapi.Identity, error) {
	if !t.hasIssuers {
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

// stats returns the counts of what the terms in force ask for.
func (p *players) stats() (all metrics.Players) {
	t := p.policy.Load()
	if t.hasIssuers {
		st := t.verifier.Stats()
		all.Identity = &st
	}
	if t.admission != nil {
		st := t.admission.Stats()
		all.Admission = &st
	}
	if t.webhooks != nil {
		st := t.webhooks.Stats()
		all.Webhooks = &st
	}
	if p.mode.hasAPI() {
		st := t.guard.Stats()
		all.Quota = &st
	}
	return all
}

// bandwidth turns what projects have relayed since the start into bytes per
// second. It belongs to one goroutine.
type bandwidth struct {
	at    time.Time
	bytes map[string]uint64 // by project, at that time; nil: never asked
}

// measure returns the bytes per second of each project since the last call, and
// nothing at the first one.
func (b *bandwidth) measure(all []engine.Usage, now time.Time) map[string]int64 {
	bytes := make(map[string]uint64)
	for i := range all {
		if project := all[i].Name.Project; project != "" {
			bytes[project] += all[i].Bytes
		}
	}
	perSecond := make(map[string]int64)
	if d := now.Sub(b.at).Seconds(); b.bytes != nil && d > 0 {
		for project, n := range bytes {
			perSecond[project] = int64(float64(n-min(n, b.bytes[project])) / d)
		}
	}
	b.at, b.bytes = now, bytes
	return perSecond
}

// rates are what projects relay per second, where the relay is in this process.
type rates struct {
	mu  sync.Mutex // guards now
	now map[string]int64
}

// of returns the bytes per second of a project.
func (r *rates) of(project string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[project]
}

// run asks the relay every 2 s, as relays of a fleet report, until ctx ends, while
// somebody wants to know.
func (r *rates) run(ctx context.Context, wanted func() bool, usage func(context.Context, ...string) ([]engine.Usage, error)) {
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	var b bandwidth
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !wanted() {
			b = bandwidth{}
			continue
		}
		all, err := usage(ctx)
		if err != nil {
			continue // The relay does not run yet, or no more.
		}
		now := b.measure(all, time.Now())
		r.mu.Lock()
		r.now = now
		r.mu.Unlock()
	}
}
