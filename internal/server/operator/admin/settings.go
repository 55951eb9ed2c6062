package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// ErrRefused is wrapped by the error of [SettingsConfig].Reload for invalid settings. Then no
// setting has changed.
var ErrRefused = errors.New("admin: the settings are invalid, so nothing was changed")

// ErrNotUpgraded is wrapped by the errors of [SettingsConfig].Upgrade: this process goes on.
var ErrNotUpgraded = errors.New("admin: no other process has taken over")

// upgradeWithin is longer than an upgrade or its failure takes.
const upgradeWithin = time.Minute

type SettingsConfig struct {
	// Values returns the settings in force, with secrets hidden.
	Values func() []operator.Setting
	// Reload reloads all settings, or none and returns ErrRefused.
	Reload func(context.Context) (operator.ReloadResult, error)
	Level  *slog.LevelVar
	// Upgrade starts the program again and lets the new process take over, or returns
	// ErrNotUpgraded. It takes seconds. Nil: no page.
	Upgrade func(context.Context) (operator.UpgradeResult, error)
}

func settingPages(mux *http.ServeMux, cfg *SettingsConfig, log *slog.Logger) {
	showValue(mux, operator.ListSettings, func() operator.Settings { return operator.Settings{Settings: cfg.Values()} })
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) {
		var done operator.ReloadResult
		err := withTimeout(r.Context(), func(ctx context.Context) (err error) {
			done, err = cfg.Reload(ctx)
			return err
		})
		writeAnswer(w, done, err)
	})
	if cfg.Upgrade != nil {
		mux.HandleFunc("POST /upgrade", func(w http.ResponseWriter, r *http.Request) {
			control, until := http.NewResponseController(w), time.Now().Add(upgradeWithin)
			_ = errors.Join(control.SetReadDeadline(until), control.SetWriteDeadline(until)) // Those of the server are shorter.
			done, err := cfg.Upgrade(r.Context())
			writeAnswer(w, done, err)
		})
	}
	level := func() operator.LogLevel { return operator.LogLevel{Level: LevelName(cfg.Level.Level())} }
	showValue(mux, operator.ListLogLevel, level)
	mux.HandleFunc("PUT /log-level", func(w http.ResponseWriter, r *http.Request) {
		err := setLevel(cfg.Level, log, r.URL.Query(), r.RemoteAddr)
		writeAnswer(w, level(), err)
	})
}

// LevelName returns the name of a level in the setting log_level.
func LevelName(l slog.Level) string { return strings.ToLower(l.String()) }

func setLevel(current *slog.LevelVar, log *slog.Logger, query url.Values, from string) error {
	var q struct {
		Level string `query:"level" oneof:"debug info warn error"`
	}
	if err := operator.ParseQuery(query, &q); err != nil {
		return err
	}
	var level slog.Level
	if level.UnmarshalText([]byte(q.Level)) != nil {
		return fmt.Errorf("%w: level is missing: debug, info, warn or error", operator.ErrQuery)
	}
	was := current.Level()
	current.Set(level)
	// The higher of both levels makes sure that the record is written.
	log.Log(context.Background(), max(was, level, slog.LevelInfo), "operator: log level changed",
		"was", LevelName(was), "now", LevelName(level), "from", from)
	return nil
}
