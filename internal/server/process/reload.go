package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

// A reload may change the handler of calls, the policy and the relay's limits. All other
// settings need a restart: sockets, advertised endpoints, and sizes for which memory is
// reserved.
var (
	reloadsAPI = []string{"tokens", "issuers", "player_per_minute", "server_per_minute", "address_per_minute", "failed_joins_per_minute",
		"server_failed_joins_per_minute"}
	reloadsTerms = []string{"quotas", "max_outstanding", "admission_url", "admission_secret_file", "admission_timeout", "admission_fail_open",
		"webhook_url", "webhook_secret_file", "hooks_plain_http"}
	reloadsLimits = []string{"joiner_datagrams", "joiner_bytes", "host_datagrams", "host_bytes", "unvalidated_bytes", "unvalidated_ratio",
		"player_hosts", "player_joiners", "player_seats"}
	reloadsOthers = []string{"max_seats", "overcommit", "log_level", "capture"}
	reloadsOIDC   = []string{"admin_oidc_issuer", "admin_oidc_client_id", "admin_oidc_secret_file", "admin_oidc_url", "admin_oidc_operators",
		"admin_oidc_viewers"}
	reloads = slices.Concat(reloadsAPI, reloadsTerms, reloadsLimits, reloadsOthers, reloadsOIDC)
)

var errNoReload = errors.New("app: this process was not started with settings that can be reloaded")

// reload is the state of the settings since the start.
type reload struct {
	asking sync.Mutex // one reload at a time; taken before mu
	mu     sync.Mutex // guards the following fields
	loaded *config.Loaded
}

// current returns the settings in effect.
func (a *App) current() config.Loaded {
	r := &a.reload
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded != nil {
		return *r.loaded
	}
	l := a.opts.Loaded
	l.Config = a.opts.Config
	return l
}

// settings returns the settings in effect as the operator sees them, with the current
// log level.
func (a *App) settings() []config.SettingValue {
	l := a.current()
	all := l.Values()
	now := admin.LevelName(a.opts.Level.Level())
	for i := range all {
		name, _, _ := strings.Cut(all[i].Key, "[")
		all[i].Reloads = slices.Contains(reloads, name)
		if all[i].Key == "log_level" && all[i].Value != now {
			all[i].Value, all[i].Source = now, "PUT /log-level"
		}
		if a.opts.Mode == Dev && slices.Contains(offInDev, all[i].Key) {
			all[i].Source = "no effect in dev"
		}
	}
	return all
}

// plan is a reload that was checked and not applied yet.
type plan struct {
	next    config.Loaded // the settings afterwards
	done    admin.ReloadResult
	level   slog.Level
	leveled bool
	terms   *policy
	calls   http.Handler // nil: unchanged
	pages   http.Handler
	renew   func() // puts a certificate in force
}

// Reload reads the settings again, applies those that may change while the process runs,
// and returns the names of the others. Errors: admin.ErrRefused for invalid settings, of
// which none is applied, and alloc.ErrUnavailable.
func (a *App) Reload(ctx context.Context) (admin.ReloadResult, error) {
	r := &a.reload
	r.asking.Lock()
	defer r.asking.Unlock()
	p, err := a.plan()
	if err != nil {
		a.opts.Logger.Error("reload: refused, nothing was changed", "error", err)
		return admin.ReloadResult{}, fmt.Errorf("%w: %w", admin.ErrRefused, err)
	}
	// The only steps that can fail are the first three. The limits are valid as settings.
	if a.relay != nil {
		if err := a.relay.engine.SetMaxSeats(ctx, a.relay.seats(&p.next.Config)); err != nil {
			return admin.ReloadResult{}, err
		}
		if err := a.relay.engine.SetPlayerLimits(ctx, playerLimits(&p.next.Config)); err != nil {
			return admin.ReloadResult{}, err
		}
		if err := a.relay.engine.SetLimits(limits(&p.next.Config)); err != nil {
			return admin.ReloadResult{}, err
		}
	}
	a.players.setPolicy(p.terms)
	if p.calls != nil {
		a.apiCalls.serve(p.calls)
	}
	if a.service != nil {
		a.service.SetMaxOutstanding(p.next.MaxOutstanding)
	}
	a.adminPages.serve(p.pages)
	if p.leveled {
		a.opts.Level.Set(p.level)
	}
	if p.renew != nil {
		p.renew()
	}
	if err := a.auditFile.reopen(); err != nil {
		p.done.Notes = append(p.done.Notes, err.Error()+": lines go on to the file that was open")
	}
	r.mu.Lock()
	r.loaded = &p.next
	r.mu.Unlock()
	a.logReload(&p.done)
	return p.done, nil
}

// logReload logs the names of changed settings, without the values: URLs may contain
// secrets, and more people read logs than the admin pages.
func (a *App) logReload(done *admin.ReloadResult) {
	log := a.opts.Logger
	for _, note := range done.Notes {
		log.Info("reload: " + note)
	}
	if len(done.Restart) > 0 {
		log.Warn("reload: settings that need a restart stay as they were", "needs_restart", changedKeys(done.Restart))
	}
	log.Info("reload: done", "changed", changedKeys(done.Changed))
}

// reloadWithin is how long a reload by signal may wait for the relay.
const reloadWithin = 5 * time.Second

// ReloadOnSignal is Reload with the result in the log.
func (a *App) ReloadOnSignal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reloadWithin)
	defer cancel()
	if _, err := a.Reload(ctx); err != nil && !errors.Is(err, admin.ErrRefused) {
		a.opts.Logger.Error("reload: the relay did not answer", "error", err)
	}
}

// plan reads and checks the settings, and determines what they change.
func (a *App) plan() (p plan, err error) {
	if a.opts.Reload == nil {
		return p, errNoReload
	}
	read, err := a.opts.Reload()
	if err == nil {
		err = Check(read.Config, a.opts.Mode)
	}
	if err != nil {
		return p, err
	}
	p.next, p.done = a.diff(&read)
	var notes []string
	if p.terms, notes, err = a.players.nextPolicy(&p.next.Config); err != nil {
		return p, err
	}
	p.done.Notes = append(p.done.Notes, notes...)
	changed := changedKeys(p.done.Changed)
	if slices.ContainsFunc(changed, func(key string) bool { return slices.Contains(reloadsAPI, key) }) {
		if p.calls, err = a.handler(&p.next.Config, p.terms); err != nil {
			return p, err
		}
	}
	// Files may have changed although the settings have not.
	if p.pages, err = a.pages(&p.next.Config); err != nil {
		return p, err
	}
	if k := a.certificates; k != nil && k.file != nil {
		var note string
		if p.renew, note, err = k.file.renewal(); err != nil {
			return p, err
		}
		p.done.Notes = append(p.done.Notes, note)
	}
	if slices.Contains(changed, "log_level") {
		p.leveled, err = true, p.level.UnmarshalText([]byte(p.next.LogLevel))
	}
	return p, err
}

// diff returns the settings after a reload of these, and the differences. New warnings
// become notes.
func (a *App) diff(read *config.Loaded) (next config.Loaded, done admin.ReloadResult) {
	now := a.current()
	done = admin.ReloadResult{Changed: []config.Change{}, Restart: []config.Change{}, Notes: []string{}}
	for _, change := range config.Changes(&now.Config, &read.Config) {
		if slices.Contains(reloads, change.Key) {
			done.Changed = append(done.Changed, change)
		} else {
			done.Restart = append(done.Restart, change)
		}
	}
	next = now.WithSettings(*read, reloads)
	known := Warnings(now.Config, a.opts.Mode)
	for _, w := range Warnings(next.Config, a.opts.Mode) {
		if !slices.Contains(known, w) {
			done.Notes = append(done.Notes, w)
		}
	}
	return next, done
}

// renewal reads the certificate files and returns a function that uses them. The loop that
// watches the files then finds no change.
func (k *certificate) renewal() (renew func(), note string, err error) {
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return nil, "", fmt.Errorf("app: tls_cert, tls_key: %w", err)
	}
	note = fmt.Sprintf("%s was read again: good until %s", k.cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	return func() { k.current.Store(&pair) }, note, nil
}

func changedKeys(changes []config.Change) (all []string) {
	for _, c := range changes {
		all = append(all, c.Key)
	}
	return all
}
