package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/ferryrelay/ferry/internal/config"
)

// ErrRefused is wrapped by what [Config].Reload returns for settings that cannot
// be used, of which none has been taken.
var ErrRefused = errors.New("admin: the settings cannot be used, so nothing was changed")

// Settings is what /config shows.
type Settings struct {
	Settings []config.SettingValue `json:"settings"`
}

// Reloaded is what POST /reload shows.
type Reloaded struct {
	// Changed is in force from now on, Restart from the next start on.
	Changed []config.Change `json:"changed"`
	Restart []config.Change `json:"needs_restart"`
	// Notes tell of what was read again besides the settings.
	Notes []string `json:"notes"`
}

// Level is what /log-level shows.
type Level struct {
	Level string `json:"level"`
}

// settingPages answers for what the process was told.
func settingPages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, Settings{cfg.Settings()}, nil)
	})
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) {
		var done Reloaded
		err := within(r.Context(), func(ctx context.Context) (err error) {
			done, err = cfg.Reload(ctx)
			return err
		})
		answer(w, done, err)
	})
	mux.HandleFunc("GET /log-level", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, Level{LevelName(cfg.Level.Level())}, nil)
	})
	mux.HandleFunc("PUT /log-level", func(w http.ResponseWriter, r *http.Request) {
		err := setLevel(cfg, r.URL.Query(), r.RemoteAddr)
		answer(w, Level{LevelName(cfg.Level.Level())}, err)
	})
}

// levels are those of the setting log_level.
var levels = []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// LevelName returns the name that the setting log_level has for a level.
func LevelName(l slog.Level) string {
	switch l {
	case slog.LevelDebug:
		return "debug"
	case slog.LevelInfo:
		return "info"
	case slog.LevelWarn:
		return "warn"
	case slog.LevelError:
		return "error"
	}
	return l.String()
}

func setLevel(cfg *Config, query url.Values, from string) error {
	var level *slog.Level
	err := parse(query, map[string]func(string) error{"level": func(text string) error {
		for _, l := range levels {
			if LevelName(l) == text {
				level = &l
				return nil
			}
		}
		return fmt.Errorf("%q is not one of debug, info, warn, error", text)
	}})
	switch {
	case err != nil:
		return err
	case level == nil:
		return fmt.Errorf("%w: level is missing: debug, info, warn or error", errQuery)
	}
	was := cfg.Level.Level()
	cfg.Level.Set(*level)
	// At the higher of both levels, or it would not be seen.
	cfg.log().Log(context.Background(), max(was, *level, slog.LevelInfo), "operator: the log level was changed",
		"was", LevelName(was), "now", LevelName(*level), "from", from)
	return nil
}
