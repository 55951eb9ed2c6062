package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

// A reload may change the handler of calls, the policy and the relay's limits. All other
// settings need a restart: sockets, advertised endpoints, and sizes for which memory is
// reserved.
var (
	reloadsAPI = config.Keys("reload", "api")
	reloads    = append(config.Keys("reload", "yes"), reloadsAPI...)
)

var errNoReload = errors.New("this process was not started with settings that can be reloaded")

// settings are those in effect. A reload changes them in all parts that prepare for it, or in none.
type settings struct {
	mode     Mode
	read     func() (config.Loaded, error) // nil: they cannot be reloaded
	level    *slog.LevelVar                // of the log
	log      *slog.Logger
	prepares []prepare

	asking sync.Mutex // one reload at a time; taken before mu
	mu     sync.Mutex // guards loaded
	loaded config.Loaded
}

// prepare checks new settings, of which those of the changed keys differ, without an effect, and
// returns what puts them in force, nil if nothing does. Files that they name may have changed in any case.
type prepare func(next *config.Config, changed []string) (apply, error)

// apply puts settings in force. It may add notes to the result. Only that of the relay, which is the
// first one, may fail.
type apply func(context.Context, *operator.ReloadResult) error

func newSettings(o *Options) *settings {
	s := &settings{mode: o.Mode, read: o.Reload, level: o.Level, log: o.Logger, loaded: o.Loaded}
	s.loaded.Config = o.Config
	return s
}

// onReload adds a part that uses new settings, before Run.
func (s *settings) onReload(p prepare) { s.prepares = append(s.prepares, p) }

func (s *settings) current() config.Loaded {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded
}

// values returns the settings in effect as the operator sees them, with the current log level.
func (s *settings) values() []operator.Setting {
	l := s.current()
	all := l.Values()
	now := admin.LevelName(s.level.Level())
	for i := range all {
		name, _, _ := strings.Cut(all[i].Key, "[")
		all[i].Reloads = slices.Contains(reloads, name)
		if all[i].Key == "log_level" && all[i].Value != now {
			all[i].Value, all[i].Source = now, "PUT /log-level"
		}
		if s.mode == Dev && slices.Contains(offInDev, all[i].Key) {
			all[i].Source = "no effect in dev"
		}
	}
	return all
}

// Reload reads the settings again, applies those that may change while the process runs,
// and returns the names of the others. Errors: admin.ErrRefused for invalid settings, of
// which none is applied, and alloc.ErrUnavailable.
func (s *settings) Reload(ctx context.Context) (operator.ReloadResult, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	next, done, applies, err := s.plan()
	if err != nil {
		s.log.Error("reload: refused, nothing was changed", "error", err)
		return operator.ReloadResult{}, fmt.Errorf("%w: %w", admin.ErrRefused, err)
	}
	for _, apply := range applies {
		if err := apply(ctx, &done); err != nil {
			return operator.ReloadResult{}, err
		}
	}
	s.mu.Lock()
	s.loaded = next
	s.mu.Unlock()
	s.logReload(&done)
	return done, nil
}

// logReload logs the names of changed settings, without the values: URLs may contain
// secrets, and more people read logs than the admin pages.
func (s *settings) logReload(done *operator.ReloadResult) {
	log := s.log
	for _, note := range done.Notes {
		log.Info("reload: " + note)
	}
	if len(done.Restart) > 0 {
		log.Warn("reload: settings that need a restart stay as they were", "needs_restart", changedKeys(done.Restart))
	}
	log.Info("reload: done", "changed", changedKeys(done.Changed))
}

const reloadWithin = 5 * time.Second

func (s *settings) reloadOnSignal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reloadWithin)
	defer cancel()
	if _, err := s.Reload(ctx); err != nil && !errors.Is(err, admin.ErrRefused) {
		s.log.Error("reload: the relay did not answer", "error", err)
	}
}

func (s *settings) plan() (next config.Loaded, done operator.ReloadResult, applies []apply, err error) {
	if s.read == nil {
		return next, done, nil, errNoReload
	}
	read, err := s.read()
	if err == nil {
		err = Check(read.Config, s.mode)
	}
	if err != nil {
		return next, done, nil, err
	}
	next, done = s.diff(&read)
	for _, prepare := range s.prepares {
		apply, err := prepare(&next.Config, changedKeys(done.Changed))
		if err != nil {
			return next, done, nil, err
		}
		if apply != nil {
			applies = append(applies, apply)
		}
	}
	return next, done, applies, nil
}

func (s *settings) prepareLevel(next *config.Config, changed []string) (apply, error) {
	var level slog.Level
	if !slices.Contains(changed, "log_level") {
		return nil, nil
	}
	if err := level.UnmarshalText([]byte(next.LogLevel)); err != nil {
		return nil, err
	}
	return func(context.Context, *operator.ReloadResult) error {
		s.level.Set(level)
		return nil
	}, nil
}

func (s *settings) diff(read *config.Loaded) (next config.Loaded, done operator.ReloadResult) {
	now := s.current()
	done = operator.ReloadResult{Changed: []operator.SettingChange{}, Restart: []operator.SettingChange{}, Notes: []string{}}
	for _, change := range config.Changes(&now.Config, &read.Config) {
		if slices.Contains(reloads, change.Key) {
			done.Changed = append(done.Changed, change)
		} else {
			done.Restart = append(done.Restart, change)
		}
	}
	next = now.WithSettings(*read, reloads)
	known := Warnings(now.Config, s.mode)
	for _, w := range Warnings(next.Config, s.mode) {
		if !slices.Contains(known, w) {
			done.Notes = append(done.Notes, w)
		}
	}
	return next, done
}

func changedKeys(changes []operator.SettingChange) (all []string) {
	for _, c := range changes {
		all = append(all, c.Key)
	}
	return all
}
