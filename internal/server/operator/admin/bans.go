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
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
)

var (
	ErrBanElsewhere = errors.New("admin: a relay of a fleet applies the bans of its fleet: change them at an API process")
	ErrBansFull     = fmt.Errorf("admin: there are %d bans already: remove one", ban.Max)
	// ErrBanShared is the error of a ban of a name that many players may share.
	ErrBanShared = errors.New("admin: no ban was made")
)

// Bans are the bans of a process or of its fleet. Its methods must be safe for concurrent use.
type Bans interface {
	// List returns the bans, those that end first first.
	List() operator.Bans
	// CheckPlayer returns an ErrBanShared that says what to ban instead, if the name of the banned player is
	// one that many share.
	CheckPlayer(operator.Ban) error
	// Add adds a ban, and ends the allocations that it concerns. It sets the id. Errors:
	// ban.ErrInvalid, ErrBansFull, ErrBanElsewhere, alloc.ErrUnavailable.
	Add(context.Context, operator.Ban) (operator.Ban, error)
	// Remove ends a ban. Errors: alloc.ErrNotFound, ErrBanElsewhere, alloc.ErrUnavailable.
	Remove(ctx context.Context, id string) error
}

// defaultBan is for how long a ban lasts without the parameter for.
const defaultBan = 24 * time.Hour

// affectedCounter counts what a checked ban would end now.
type affectedCounter func(context.Context, operator.Ban) (operator.Affected, error)

// checkBan counts what a ban would end. Errors: ban.ErrInvalid, ErrBanShared, those of the counter.
func checkBan(ctx context.Context, b operator.Ban, bans Bans, count affectedCounter) (all operator.Affected, err error) {
	b, err = ban.Check(b)
	if err == nil {
		err = bans.CheckPlayer(b)
	}
	if err != nil || count == nil {
		return all, err
	}
	if all, err = count(ctx, b); err == nil && all.Shared > 0 {
		err = fmt.Errorf("%w: %d live allocations have the name of the %s and may be of many players, as those of a static token or a "+
			"backend are; ban the network of the player, or a player that the backend names, or revoke the token", ErrBanShared,
			all.Shared, b.Subject())
	}
	all.Text = describeBan(&b, &all)
	return all, err
}

// describeBan says what a ban ends now, and what it shuts out.
func describeBan(b *operator.Ban, n *operator.Affected) string {
	text := fmt.Sprintf("The ban of %s ends now: hosts %d", b.Subject(), n.Hosts)
	if n.Hosts > 0 {
		text += fmt.Sprintf(" (each with its match; others in these matches: %d)", n.Others)
	}
	text += fmt.Sprintf(", joiners %d", n.Joiners)
	if b.Prefix.IsValid() {
		text += fmt.Sprintf(", WebSocket connections %d", n.WebSockets)
	}
	if n.MissingRelays > 0 {
		text += fmt.Sprintf("; relays that are not in the sum: %d", n.MissingRelays)
	}
	if b.Prefix.IsValid() {
		return text + ". All players of this network are shut out: allocate, join and migrate are refused, and what they send is dropped. " +
			"Calls of backends with a token of kind server are not refused."
	}
	return text + ". Allocate, join and migrate of this player are refused, also when a backend calls for it."
}

func banPages(mux *http.ServeMux, bans Bans, count affectedCounter, log *slog.Logger) {
	show(mux, operator.ListAffected, func(ctx context.Context, q operator.BanQuery) (all operator.Affected, err error) {
		b, err := banOf(&q)
		if err == nil {
			all, err = checkBan(ctx, b, bans, count)
		}
		if err != nil && statusOf(err) < http.StatusInternalServerError {
			all, err = operator.Affected{Refused: err.Error()}, nil
		}
		return all, err
	})
	showValue(mux, operator.ListBans, func() operator.Bans {
		list := bans.List()
		if list.Bans == nil {
			list.Bans = []operator.Ban{} // not null
		}
		return list
	})
	mux.HandleFunc("POST /bans", func(w http.ResponseWriter, r *http.Request) {
		b, err := parseBan(r.URL.Query())
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) error {
				if _, err := checkBan(ctx, b, bans, count); errors.Is(err, ErrBanShared) {
					return err
				}
				return nil // Add checks the rest, and relays that do not answer prevent no ban.
			})
		}
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				b, err = bans.Add(ctx, b)
				return err
			})
		}
		if err == nil {
			log.Info("operator: banned", "ban", b.ID, "subject", b.Subject(), "until", b.Until.Format(time.RFC3339), "from", r.RemoteAddr)
		}
		writeAnswer(w, b, err)
	})
	remove := func(w http.ResponseWriter, r *http.Request, removed operator.RemovedBans) {
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			for i := range removed.Bans {
				if err := bans.Remove(ctx, removed.Bans[i].ID); err != nil {
					return err
				}
				log.Info("operator: a ban was removed", "ban", removed.Bans[i].ID, "subject", removed.Bans[i].Subject(), "from", r.RemoteAddr)
			}
			return nil
		})
		writeAnswer(w, removed, err)
	}
	mux.HandleFunc("DELETE /bans/{id}", func(w http.ResponseWriter, r *http.Request) {
		removed := operator.RemovedBans{ID: r.PathValue("id"), Done: doneRemoved, Bans: []operator.Ban{{ID: r.PathValue("id")}}}
		for _, b := range bans.List().Bans {
			if b.ID == removed.ID {
				removed.Bans[0] = b
			}
		}
		remove(w, r, removed)
	})
	mux.HandleFunc("DELETE /bans", func(w http.ResponseWriter, r *http.Request) {
		subject, err := parseBan(r.URL.Query())
		removed := operator.RemovedBans{Done: doneRemoved}
		if err == nil {
			removed.Bans, removed.Remaining, err = bansOf(subject, bans.List().Bans)
		}
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		remove(w, r, removed)
	})
}

// showAffected registers what an API process asks of each relay.
func showAffected(mux *http.ServeMux, count affectedCounter) {
	show(mux, operator.ListAffected, func(ctx context.Context, q operator.BanQuery) (all operator.Affected, err error) {
		b, err := banOf(&q)
		if err == nil {
			b, err = ban.Check(b)
		}
		if err == nil {
			all, err = count(ctx, b)
		}
		return all, err
	})
}

// affectedInFleet returns the sum of all relays, and how many are missing in it: those that do not
// answer, or whose version does not count.
func affectedInFleet(ctx context.Context, fleet relays, b operator.Ban) (all operator.Affected, err error) {
	q := operator.BanQuery{Player: b.Player, Project: b.Project, Environment: b.Environment}
	if b.Player == "" {
		q.Prefix = b.Prefix.String()
	}
	missing, err := askFleet(ctx, fleet, operator.ListAffected, q, &all)
	if len(missing) > 0 {
		err = nil
	}
	return all, err
}

const doneRemoved = "removed"

var errNoBan = errors.New("admin")

// bansOf returns the bans of the player, or of the network and of those inside it, and the bans of
// networks around it. It is an error if there is none to remove.
func bansOf(subject operator.Ban, all []operator.Ban) (within, around []operator.Ban, err error) {
	if (subject.Player == "") != subject.Prefix.IsValid() || subject.Player != "" && (subject.Project == "" || subject.Environment == "") {
		return nil, nil, fmt.Errorf("%w: name a prefix, or a player with its project and environment", operator.ErrQuery)
	}
	if subject.Prefix.IsValid() {
		subject.Prefix = ban.Network(subject.Prefix)
	}
	var names []string
	for i := range all {
		switch b := &all[i]; {
		case ban.Covers(&subject, b):
			within = append(within, *b)
		case subject.Player == "" && b.Player == "" && ban.Covers(b, &subject):
			around, names = append(around, *b), append(names, b.Subject()+" ("+b.ID+")")
		}
	}
	switch {
	case len(within) > 0:
		return within, around, nil
	case len(around) > 0:
		return nil, nil, fmt.Errorf("%w: no ban is of %s, which is inside of a banned network: %s", errNoBan, subject.Subject(),
			strings.Join(names, ", "))
	case subject.Player != "":
		return nil, nil, fmt.Errorf("%w: %s is not banned", errNoBan, subject.Subject())
	}
	return nil, nil, fmt.Errorf("%w: no ban is of %s or of a network inside it", errNoBan, subject.Subject())
}

var errPrefix = errors.New("is neither an address nor a prefix such as 192.0.2.0/24")

func parseBan(query url.Values) (operator.Ban, error) {
	var q operator.BanQuery
	if err := operator.ParseQuery(query, &q); err != nil {
		return operator.Ban{}, err
	}
	return banOf(&q)
}

func banOf(q *operator.BanQuery) (operator.Ban, error) {
	b := operator.Ban{
		Player: q.Player, Project: q.Project, Environment: q.Environment, Reason: q.Reason, Since: time.Now().UTC().Truncate(time.Second),
	}
	if q.Prefix != "" {
		var ok bool
		if b.Prefix, ok = operator.ParsePrefix(q.Prefix); !ok {
			return b, fmt.Errorf("%w: prefix: %q %w", operator.ErrQuery, q.Prefix, errPrefix)
		}
	}
	d := defaultBan
	if q.For != "" {
		var err error
		if d, err = time.ParseDuration(q.For); err != nil || d < time.Second {
			return b, fmt.Errorf("%w: for: %q is not a duration such as 24h, at least 1s", operator.ErrQuery, q.For)
		}
	}
	b.Until = b.Since.Add(d)
	return b, nil
}
