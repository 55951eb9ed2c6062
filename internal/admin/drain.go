package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

// ErrFinal is returned by [Config].Undrain for a drain that a signal began:
// whoever sent it waits for the end of the process.
var ErrFinal = errors.New("admin: a signal began this drain, so it cannot be undone")

// DrainState is what /drain shows.
type DrainState struct {
	// Node is the relay that was named; absent: the process that was asked.
	Node string `json:"node,omitempty"`

	Draining bool `json:"draining"`
	// Final is set for a drain that cannot be undone.
	Final bool `json:"final"`
	// Deadline is when the process ends whatever is left; absent: never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Threshold is how many allocations may be left when it ends.
	Threshold int `json:"threshold"`
	// Allocations is how many are left.
	Allocations int `json:"allocations"`
}

const (
	// DefaultDeadline is the deadline of a drain where nobody says another: the
	// length of a match (reliability-security.md 7.3).
	DefaultDeadline = time.Hour
	// maxDeadline is the longest deadline, that of the setting.
	maxDeadline = 168 * time.Hour
	// maxThreshold is the largest number of allocations that a relay holds.
	maxThreshold = 1 << 26
)

// drainConfig reads the query of POST /drain. Nothing else is understood, so
// that a slip of the pen does not become a drain without a deadline.
func drainConfig(query url.Values, defaults engine.DrainConfig) (engine.DrainConfig, error) {
	cfg := defaults
	err := parse(query, map[string]func(string) error{
		"deadline": func(text string) (err error) {
			cfg.Deadline, err = time.ParseDuration(text)
			if err != nil || cfg.Deadline < 0 || cfg.Deadline > maxDeadline {
				return fmt.Errorf("%q is not a time span such as 1h, up to 168h, or 0 for none", text)
			}
			return nil
		},
		"threshold": func(text string) error {
			n, err := number(text, maxThreshold)
			cfg.Threshold = int(n)
			return err
		},
	})
	return cfg, err
}

// drainPages answers GET, POST and DELETE /drain with the state afterwards.
func drainPages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /drain", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, cfg.Draining(), nil)
	})
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		want, err := drainConfig(r.URL.Query(), cfg.DrainDefaults)
		if err == nil {
			err = within(r.Context(), func(ctx context.Context) error { return cfg.Drain(ctx, want) })
		}
		answer(w, cfg.Draining(), err)
	})
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) {
		err := within(r.Context(), cfg.Undrain)
		answer(w, cfg.Draining(), err)
	})
}
