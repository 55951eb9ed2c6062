package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/operator/bans"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
)

// players holds the policy about players, and the state that survives a reload. Its fields
// are fixed by newPlayers, except for those that say otherwise.
type players struct {
	mode   Mode
	log    *slog.Logger
	policy atomic.Pointer[policy] // in force
	// planned is the policy that a reload prepares, or in force; guarded by settings.asking.
	planned *policy

	rates  rates           // with the relay in this process
	sender *hooks.Webhooks // of events, if the policy has a target for them
}

// newPlayers returns players with the policy of the settings. It reads the files of
// secrets and opens no connection. log is nil if the settings are only checked.
func newPlayers(c *config.Config, mode Mode, log *slog.Logger) (*players, error) {
	p := &players{mode: mode, log: log, sender: hooks.NewWebhooks(hooks.WebhookConfig{Logger: log})}
	verifier, err := identity.New(identity.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	p.policy.Store(&policy{verifier: verifier, guard: quota.NewGuard(log)})
	if p.planned, _, err = p.nextPolicy(c); err != nil {
		return nil, err
	}
	p.setPolicy(p.planned)
	return p, nil
}

// admitOnRelay checks quotas when the relay in this process reserves. It is exact for
// concurrent reservations, which admit is not.
func (p *players) admitOnRelay(project string, allocations, players int) error {
	return p.policy.Load().guard.Check(project, quota.Usage{
		Allocations: allocations, Players: players, BytesPerSecond: p.rates.of(project),
	})
}

func (p *players) hasBandwidthQuotas() bool { return p.policy.Load().metered }

func (p *players) allowedRegions(t alloc.Tenant) []string { return p.policy.Load().regions[t.Project] }

// admission decides on the reservations of a service.
type admission struct {
	players *players
	bans    *bans.Keeper
	usage   quota.Source
}

// newBans returns the bans of a process with this relay, nil if there is none, and the stores of its fleet,
// nil without one.
func newBans(o *Options, r *localRelay, stores *redisstore.Stores, s *settings) (*bans.Keeper, error) {
	cfg := bans.Config{
		Writes: true, File: o.Files.Bans, Anonymous: o.Mode == Dev, Logger: o.Logger,
		Tokens: func() (all []httpapi.Token) {
			now := s.current()
			for i := range now.Tokens {
				token, _ := apiToken(&now.Tokens[i]) // Check returns the error.
				all = append(all, token)
			}
			return all
		},
	}
	if r != nil {
		cfg.Relay = r.engine.Server
		if r.engine.WebSocket != nil {
			cfg.WebSocket = r.engine.WebSocket
		}
	}
	if stores != nil {
		cfg.Store, cfg.Writes, cfg.File = stores, o.Mode == API, ""
	}
	return bans.New(cfg)
}

// newAdmission counts what projects use at the relay of this process, or without one in the stores.
func newAdmission(p *players, b *bans.Keeper, r *localRelay, stores *redisstore.Stores) *admission {
	if r == nil {
		return &admission{p, b, leases{stores}.usage}
	}
	return &admission{p, b, func(ctx context.Context, project string) (quota.Usage, error) {
		all, err := r.engine.Private().Projects(ctx, project)
		u := quota.Usage{BytesPerSecond: p.rates.of(project)}
		for _, t := range all {
			u.Allocations, u.Players = t.Allocations, t.Players
		}
		return u, err
	}}
}

// admit is called before each reservation. It checks bans and quotas first, since they need no
// call.
func (d *admission) admit(ctx context.Context, a alloc.AdmissionRequest) error {
	if err := d.bans.Refuses(a.Caller); err != nil {
		return err
	}
	t := d.players.policy.Load()
	if err := t.guard.Admit(ctx, a, d.usage); err != nil {
		return err
	}
	if t.admission != nil {
		return t.admission.Admit(ctx, a)
	}
	return nil
}

func (p *players) subscribe(s *events.Stream, d *history.Directory) {
	s.Reservation.Subscribe(func(e alloc.ReservationEvent) {
		if w := p.webhooks(); w != nil {
			w.Send(hooks.EventOf(e))
		}
	})
	s.Bind.Subscribe(func(e engine.BindEvent) {
		if w := p.webhooks(); w != nil {
			w.Send(hooks.Event{Type: hooks.Bound, Allocation: e.ID.String(), Role: e.Role.String()})
		}
	})
	s.Connect.Subscribe(func(e engine.ConnectEvent) {
		if w := p.webhooks(); w != nil {
			w.Send(hooks.Event{Type: hooks.Joined, Allocation: e.Joiner.String(), Peer: e.Host.String()})
		}
	})
	s.Disconnect.Subscribe(func(e engine.DisconnectEvent) {
		if w := p.webhooks(); w != nil {
			w.Send(hooks.Event{Type: hooks.Left, Allocation: e.From.String(), Peer: e.To.String()})
		}
	})
	s.End.Subscribe(func(e engine.EndEvent) {
		w := p.webhooks()
		if w == nil {
			return
		}
		owner := d.OwnerOf(e.ID)
		if owner.Cut {
			owner.Player = "" // A program compares names: none is better than a wrong one.
		}
		ended := hooks.Event{
			Type: hooks.Ended, Allocation: e.ID.String(), Role: e.Role.String(), Reason: e.Reason.String(),
			Project: e.Tenant.Project, Environment: e.Tenant.Environment, Player: owner.Player,
			Datagrams: e.SentDatagrams, Bytes: e.SentBytes,
		}
		if e.EverBound {
			ended.PlayerSeconds = e.Age.Seconds()
		}
		w.Send(ended)
	})
}

// run runs the verifier and the webhooks until ctx ends. Events that were
// queued before webhooks were turned off are still sent.
func (p *players) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { p.policy.Load().verifier.Run(ctx) })
	all.Go(func() { p.sender.Run(ctx) })
	all.Wait()
}

// webhooks returns where events go, nil if they are off.
func (p *players) webhooks() *hooks.Webhooks {
	if p.policy.Load().target == nil {
		return nil
	}
	return p.sender
}

// close releases the admission program, after the last call.
func (p *players) close() error {
	if a := p.policy.Load().admission; a != nil {
		a.Close()
	}
	return nil
}

func issuerWarnings(c *config.Config) (all []string) {
	for i, issuer := range c.Issuers {
		if issuer.Preset == "development" && issuer.Project == "" {
			all = append(all, fmt.Sprintf("issuers[%d]: a holder of the HS256 key can create tokens for every project and for backends; this preset is for development", i))
		}
	}
	return all
}

// policy is what one set of settings says about callers, admission, webhooks and quotas.
// It is immutable. A call finishes with the policy that it began with.
type policy struct {
	verifier          *identity.Verifier
	hasIssuers        bool              // there are issuers
	admission         *hooks.Admission  // nil: off
	admissionSettings admissionSettings // by admission
	target            *hooks.Target     // of webhooks; nil: off
	webhookSettings   webhookSettings   // by target
	guard             *quota.Guard
	metered           bool                // a project has a quota of bandwidth
	regions           map[string][]string // in which a project may have hosts, by its name
}

// admissionSettings and webhookSettings are the settings of the operator's programs with
// the contents of their secret files, which may change while the settings do not.
type admissionSettings struct {
	url      string
	secret   config.Secret
	failOpen bool
}

type webhookSettings struct {
	url    string
	secret config.Secret
}

// nextPolicy returns the policy of these settings, and notes about changed files. State
// that remains valid moves to it: the keys of an issuer, the circuit breaker of an
// admission program. It has no effect before setPolicy. A relay of a fleet has webhooks
// only, since API processes admit players. Calls must not be concurrent.
func (p *players) nextPolicy(c *config.Config) (next *policy, notes []string, err error) {
	if p.mode == Relay {
		c = &config.Config{WebhookURL: c.WebhookURL, WebhookSecretFile: c.WebhookSecretFile}
	}
	was := p.policy.Load()
	next = &policy{hasIssuers: len(c.Issuers) > 0}
	var errs []error
	next.verifier, err = was.verifier.With(issuers(c))
	errs = append(errs, err, next.setAdmission(c, was, p.log), next.setWebhooks(c, was), next.setQuotas(c, was))
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if was.admissionSettings.url != "" && next.admissionSettings.url == was.admissionSettings.url &&
		next.admissionSettings.secret != was.admissionSettings.secret {
		notes = append(notes, "requests to admission_url are signed with another secret")
	}
	if was.webhookSettings.url != "" && next.webhookSettings.url == was.webhookSettings.url &&
		next.webhookSettings.secret != was.webhookSettings.secret {
		notes = append(notes, "messages to webhook_url are signed with another secret")
	}
	return next, notes, nil
}

// prepare is a [prepare] for the policy, which is then also in planned.
func (p *players) prepare(c *config.Config, _ []string) (apply, error) {
	next, notes, err := p.nextPolicy(c)
	if err != nil {
		return nil, err
	}
	p.planned = next
	return func(_ context.Context, done *operator.ReloadResult) error {
		p.setPolicy(next)
		done.Notes = append(done.Notes, notes...)
		return nil
	}, nil
}

// setPolicy puts the last result of nextPolicy into effect. Current calls finish with the
// previous policy. Queued events go to the new webhook.
func (p *players) setPolicy(next *policy) {
	if next.target != nil && next.target != p.policy.Load().target {
		p.sender.SetTarget(next.target)
	}
	was := p.policy.Swap(next)
	next.verifier.Activate()
	if was.admission != nil && was.admission != next.admission {
		was.admission.Close()
	}
}

// setAdmission creates the admission, or keeps the previous one if its settings are the
// same.
func (t *policy) setAdmission(c *config.Config, was *policy, log *slog.Logger) (err error) {
	if c.AdmissionURL == "" {
		return nil
	}
	t.admissionSettings = admissionSettings{url: c.AdmissionURL, failOpen: c.AdmissionFailOpen}
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
		URL: c.AdmissionURL, Secret: secret, FailOpen: c.AdmissionFailOpen, Logger: log,
	})
	if err != nil {
		return fmt.Errorf("admission_url: %w", err)
	}
	return nil
}

// setWebhooks creates the target of webhooks, or keeps the previous one if its settings are the same.
func (t *policy) setWebhooks(c *config.Config, was *policy) error {
	if c.WebhookURL == "" {
		return nil
	}
	if c.WebhookSecretFile == "" {
		return errors.New("webhook_url: webhook_secret_file is required, so that its receiver can verify the sender")
	}
	secret, err := config.ReadSecret(c.WebhookSecretFile)
	if err != nil {
		return fmt.Errorf("webhook_secret_file: %w", err)
	}
	t.webhookSettings = webhookSettings{url: c.WebhookURL, secret: secret}
	if t.webhookSettings == was.webhookSettings {
		t.target = was.target
		return nil
	}
	if t.target, err = hooks.NewTarget(hooks.WebhookConfig{URL: c.WebhookURL, Secret: []byte(secret)}); err != nil {
		return fmt.Errorf("webhook_url: %w", err)
	}
	return nil
}

func (t *policy) setQuotas(c *config.Config, was *policy) (err error) {
	var errs []error
	limits := make(map[string]quota.Limits)
	t.regions = make(map[string][]string)
	for i, q := range c.Quotas {
		if _, twice := limits[q.Project]; twice {
			errs = append(errs, fmt.Errorf("quotas[%d]: project %q has one already", i, q.Project))
		}
		if err := checkRegionNames(c, q.Regions); err != nil {
			errs = append(errs, fmt.Errorf("quotas[%d]: %w", i, err))
		}
		limits[q.Project] = quota.Limits{
			Allocations: q.Allocations, Players: q.Players, BytesPerSecond: int64(q.BytesPerSecond), Inactive: q.Inactive,
		}
		t.metered = t.metered || q.BytesPerSecond > 0
		t.regions[q.Project] = q.Regions
	}
	t.guard, err = was.guard.With(limits)
	return errors.Join(append(errs, err)...)
}

// checkRegionNames returns an error for a region that is not in region_stores, if there are any.
func checkRegionNames(c *config.Config, regions []string) error {
	for _, region := range regions {
		isRegion := func(s config.RegionStore) bool { return s.Region == region }
		if len(c.RegionStores) > 0 && !slices.ContainsFunc(c.RegionStores, isRegion) {
			return fmt.Errorf("region %q is not in region_stores", region)
		}
	}
	return nil
}

func issuers(c *config.Config) (all []identity.Issuer) {
	for _, i := range c.Issuers {
		rule := identity.Issuer{
			Issuer: i.Issuer, Audience: i.Audience, JWKSURL: i.JWKSURL, HS256Key: []byte(i.HS256Key),
			ProjectClaim: i.ProjectClaim, Project: i.Project,
			EnvironmentClaim: i.EnvironmentClaim, Environment: i.Environment,
			Server: i.Kind == "server",
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

func (t *policy) authenticate() func(context.Context, string) (alloc.Caller, error) {
	if !t.hasIssuers {
		return nil
	}
	return func(ctx context.Context, token string) (alloc.Caller, error) {
		who, err := t.verifier.Verify(ctx, token)
		switch {
		case errors.Is(err, identity.ErrExpired):
			return alloc.Caller{}, fmt.Errorf("%w: %w", httpapi.ErrTokenExpired, err)
		case errors.Is(err, identity.ErrKeysUnavailable):
			return alloc.Caller{}, fmt.Errorf("%w: %w", httpapi.ErrAuthUnavailable, err)
		case errors.Is(err, identity.ErrRules):
			return alloc.Caller{}, httpapi.TokenError{Reason: strings.TrimPrefix(err.Error(), "identity: ")}
		case err != nil:
			return alloc.Caller{}, err
		}
		return alloc.Caller{Tenant: who.Tenant, Player: who.Player, Server: who.Server, Regions: who.Regions}, nil
	}
}

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
	if t.target != nil {
		st := p.sender.Stats()
		all.Webhooks = &st
	}
	if p.mode.hasAPI() {
		st := t.guard.Stats()
		all.Quota = &st
	}
	return all
}

// bandwidth converts the bytes that projects have relayed since the start into bytes per
// second. It belongs to one goroutine.
type bandwidth struct {
	at    time.Time
	bytes map[string]uint64 // by project, at that time; nil: never asked
}

// measure returns the bytes per second of each project since the last call, none at the
// first call.
func (b *bandwidth) measure(all []privateapi.ProjectUsage, now time.Time) map[string]int64 {
	bytes := make(map[string]uint64)
	for i := range all {
		bytes[all[i].Project] = all[i].Bytes
	}
	perSecond := make(map[string]int64)
	if d := now.Sub(b.at).Seconds(); b.bytes != nil && d > 0 {
		for project, n := range bytes {
			before := b.bytes[project]
			if n < before {
				before = 0 // The relay has begun to count the project anew.
			}
			perSecond[project] = int64(float64(n-before) / d)
		}
	}
	b.at, b.bytes = now, bytes
	return perSecond
}

type rates struct {
	mu  sync.Mutex // guards now
	now map[string]int64
}

func (r *rates) of(project string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[project]
}

// run reads the usage of the relay every 2 s, the interval of a fleet, until ctx ends,
// while wanted returns true.
func (r *rates) run(ctx context.Context, wanted func() bool, usage func(context.Context, ...string) ([]privateapi.ProjectUsage, error)) {
	var b bandwidth
	periodic.Run(ctx, leaseEvery, func() {
		if !wanted() {
			b = bandwidth{}
			return
		}
		all, err := usage(ctx)
		if err != nil {
			return // The relay does not run yet, or no more.
		}
		now := b.measure(all, time.Now())
		r.mu.Lock()
		r.now = now
		r.mu.Unlock()
	})
}
