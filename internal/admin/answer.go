package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// answerWithin is how long the relay may take for one answer. A listing of a
// million allocations takes a fraction of it.
const answerWithin = 5 * time.Second

func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return do(ctx)
}

// errQuery is wrapped by what a query is refused for.
var errQuery = errors.New("admin")

// answer writes what was asked for as JSON, or the error as text.
func answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The error is the reader's own, who has gone away.
	_ = json.NewEncoder(w).Encode(value)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errQuery):
		return http.StatusBadRequest
	case errors.Is(err, alloc.ErrNotFound), errors.Is(err, errNode):
		return http.StatusNotFound
	case errors.Is(err, ErrFinal), errors.Is(err, engine.ErrKickHost), errors.Is(err, errNoRelay), errors.Is(err, errNoTable):
		return http.StatusConflict
	case errors.Is(err, ErrRefused):
		return http.StatusUnprocessableEntity
	case errors.Is(err, alloc.ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// parse reads a query with the readers of its parameters. Nothing else is
// understood, so that a slip of the pen does not become another question.
func parse(query url.Values, readers map[string]func(string) error) error {
	for name, values := range query {
		read, ok := readers[name]
		if !ok {
			return fmt.Errorf("%w: unknown parameter %q", errQuery, name)
		}
		if len(values) != 1 {
			return fmt.Errorf("%w: %s is given %d times", errQuery, name, len(values))
		}
		if err := read(values[0]); err != nil {
			return fmt.Errorf("%w: %s: %w", errQuery, name, err)
		}
	}
	return nil
}
