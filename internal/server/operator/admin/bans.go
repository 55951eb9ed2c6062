package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
)

// Errors of [Bans].
var (
	ErrBanElsewhere = errors.New("admin: a relay of a fleet applies the bans of its fleet: change them at an API process")
	ErrBansFull     = fmt.Errorf("admin: there are %d bans already: remove one", ban.Max)
)

// Bans are the bans of a process or of its fleet. Its methods must be safe for concurrent use.
type Bans interface {
	// All returns the bans, those that end first first.
	All() []ban.Ban
	// Add adds a ban, and ends the allocations that it concerns. It sets the id. Errors:
	// ban.ErrInvalid, ErrBansFull, ErrBanElsewhere, alloc.ErrUnavailable.
	Add(context.Context, ban.Ban) (ban.Ban, error)
	// Remove ends a ban. Errors: alloc.ErrNotFound, ErrBanElsewhere, alloc.ErrUnavailable.
	Remove(ctx context.Context, id string) error
}

// BanList is the response of /bans.
type BanList struct {
	Bans []ban.Ban `json:"bans"`
}

// defaultBan is for how long a ban lasts without the parameter for.
const defaultBan = 24 * time.Hour

// banPages registers GET /bans, POST /bans?prefix=…&for=24h&reason=… or
// ?player=…&project=…&environment=…, and DELETE /bans/ID.
func banPages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /bans", func(w http.ResponseWriter, _ *http.Request) {
		list := BanList{cfg.Bans.All()}
		if list.Bans == nil {
			list.Bans = []ban.Ban{} // not null
		}
		writeAnswer(w, list, nil)
	})
	mux.HandleFunc("POST /bans", func(w http.ResponseWriter, r *http.Request) {
		b, err := parseBan(r.URL.Query(), time.Now())
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				b, err = cfg.Bans.Add(ctx, b)
				return err
			})
		}
		if err == nil {
			cfg.log().Info("operator: banned", "ban", b.ID, "subject", b.Subject(), "until", b.Until.Format(time.RFC3339), "from", r.RemoteAddr)
		}
		writeAnswer(w, b, err)
	})
	mux.HandleFunc("DELETE /bans/{id}", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		err := withTimeout(r.Context(), func(ctx context.Context) error { return cfg.Bans.Remove(ctx, id) })
		if err == nil {
			cfg.log().Info("operator: a ban was removed", "ban", id, "from", r.RemoteAddr)
		}
		writeAnswer(w, operator.ActionResult{ID: id, Done: "removed"}, err)
	})
}

var errPrefix = errors.New("is neither an address nor a prefix such as 192.0.2.0/24")

// parseBan returns the ban of a query.
func parseBan(query url.Values, now time.Time) (ban.Ban, error) {
	b, d := ban.Ban{Since: now.UTC().Truncate(time.Second)}, defaultBan
	text := func(to *string) func(string) error {
		return func(value string) error { *to = value; return nil }
	}
	err := parse(query, map[string]func(string) error{
		"player": text(&b.Player), "project": text(&b.Project), "environment": text(&b.Environment), "reason": text(&b.Reason),
		"prefix": func(value string) error {
			var ok bool
			if b.Prefix, ok = parsePrefix(value); !ok {
				return fmt.Errorf("%q %w", value, errPrefix)
			}
			return nil
		},
		"for": func(value string) (err error) {
			if d, err = time.ParseDuration(value); err != nil || d < time.Second {
				return fmt.Errorf("%q is not a duration such as 24h, at least 1s", value)
			}
			return nil
		},
	})
	b.Until = b.Since.Add(d)
	return b, err
}
