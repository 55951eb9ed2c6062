package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// show registers the page of a listing, whose answers read makes.
func show[Q, A any](mux *http.ServeMux, l *operator.List[Q, A], read func(context.Context, Q) (A, error)) {
	mux.HandleFunc("GET "+l.Path, func(w http.ResponseWriter, r *http.Request) {
		var answer A
		q, err := l.Parse(r.URL.Query(), r.PathValue)
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				answer, err = read(ctx, q)
				return err
			})
		}
		writeAnswer(w, answer, err)
	})
}

// showValue registers the page of a listing that has no query and no error.
func showValue[A any](mux *http.ServeMux, l *operator.List[operator.NoQuery, A], value func() A) {
	show(mux, l, func(context.Context, operator.NoQuery) (A, error) { return value(), nil })
}

// showFleet registers the page of a listing that merges the answers of all relays.
func showFleet[Q, A any](mux *http.ServeMux, l *operator.List[Q, A], fleet relays) {
	show(mux, l, func(ctx context.Context, q Q) (all A, err error) {
		_, err = askFleet(ctx, fleet, l, q, &all)
		return all, err
	})
}

// askFleet merges the answers of all relays into one. Errors: those of askRelays, and of the query.
func askFleet[Q, A any](ctx context.Context, fleet relays, l *operator.List[Q, A], q Q, all *A) (missing []operator.Missing, err error) {
	ask := q
	if l.Ask != nil {
		if ask, err = l.Ask(q); err != nil {
			return nil, err
		}
	}
	missing, err = askRelays(ctx, fleet, l.Target(ask), func(n operator.Node, part A) bool { return l.Merge(all, &part, &n) })
	if l.Finish != nil {
		l.Finish(all, &q, missing)
	}
	return missing, err
}

// findInFleet returns what the relay that knows an allocation says of it. Errors: alloc.ErrNotFound, and
// alloc.ErrUnavailable if some relays did not answer.
func findInFleet(ctx context.Context, fleet relays, name string) (answer operator.Why, err error) {
	missing, err := askFleet(ctx, fleet, operator.ListWhy, operator.NameQuery{Name: name}, &answer)
	switch {
	case err != nil || answer.Known:
		return answer, err
	case len(missing) > 0:
		var lines []string
		for _, m := range missing {
			lines = append(lines, strings.Join(strings.Fields(m.Relay+" "+m.Region+" "+m.Reason), " "))
		}
		return answer, fmt.Errorf("%w: no relay that answered has it; missing: %s", alloc.ErrUnavailable, strings.Join(lines, "; "))
	case answer.Awaited:
		return answer, nil
	}
	nodes, err := fleet.nodes(ctx)
	if err == nil && !slices.ContainsFunc(nodes.Nodes, func(n operator.Node) bool { return n.Role != apiRole }) {
		return answer, fmt.Errorf("%w: this API process knows no relay at present", alloc.ErrUnavailable)
	}
	return answer, errors.Join(err, fmt.Errorf("%w: no relay of the fleet knows %q", alloc.ErrNotFound, name))
}
