package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// ErrFinal is returned by [Config].Undrain for a drain that a signal began:
// whoever sent it waits for the end of the process.
var ErrFinal = errors.New("admin: a signal began this drain, so it cannot be undone")

// DrainState is what /drain shows.
type DrainState struct {
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
	for name, values := range query {
		var err error
		switch value := values[len(values)-1]; name {
		case "deadline":
			cfg.Deadline, err = time.ParseDuration(value)
			if err != nil || cfg.Deadline < 0 || cfg.Deadline > maxDeadline {
				return cfg, fmt.Errorf("admin: deadline %q is not a time span such as 1h, up to 168h, or 0 for none", value)
			}
		case "threshold":
			cfg.Threshold, err = strconv.Atoi(value)
			if err != nil || cfg.Threshold < 0 || cfg.Threshold > maxThreshold {
				return cfg, fmt.Errorf("admin: threshold %q is not a number of allocations", value)
			}
		default:
			return cfg, fmt.Errorf("admin: unknown parameter %q; there are deadline and threshold", name)
		}
	}
	return cfg, nil
}

// drainPages answers GET, POST and DELETE /drain with the state afterwards.
func drainPages(mux *http.ServeMux, cfg Config) {
	mux.HandleFunc("GET /drain", func(w http.ResponseWriter, _ *http.Request) {
		writeDrain(w, cfg.Draining(), nil)
	})
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		want, err := drainConfig(r.URL.Query(), cfg.DrainDefaults)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err = within(r.Context(), func(ctx context.Context) error { return cfg.Drain(ctx, want) })
		writeDrain(w, cfg.Draining(), err)
	})
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) {
		err := within(r.Context(), cfg.Undrain)
		writeDrain(w, cfg.Draining(), err)
	})
}

// drainWithin is how long the relay may take to take note.
const drainWithin = 5 * time.Second

func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	return do(ctx)
}

func writeDrain(w http.ResponseWriter, state DrainState, err error) {
	switch {
	case errors.Is(err, ErrFinal):
		http.Error(w, err.Error(), http.StatusConflict)
		return
	case errors.Is(err, alloc.ErrUnavailable):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The error is the reader's own, who has gone away.
	_ = json.NewEncoder(w).Encode(state)
}
