package httpapi

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

// TestHookPanics: a hook that panics is named in the log, and ends no call but the one that it identifies.
func TestHookPanics(t *testing.T) {
	t.Parallel()
	fails := func() { panic("no database") }
	for name, c := range map[string]struct {
		cfg   Config
		token string
		want  int
	}{
		"Authenticate": {
			Config{Authenticate: func(context.Context, string) (alloc.Caller, error) { fails(); return alloc.Caller{}, nil }}, "unknown", 503,
		},
		"Identify":  {Config{Identify: func(*http.Request) (alloc.Caller, error) { fails(); return alloc.Caller{}, nil }}, "", 503},
		"OnRequest": {Config{OnRequest: func(Request) { fails() }}, tokenAnna, 200},
	} {
		var out bytes.Buffer
		c.cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
		x := newFixture(t, c.cfg)
		for range 3 {
			wantStatus(t, x.do(regionsOf(c.token)()), c.want)
		}
		if strings.Count(out.String(), "no database") != 1 || !strings.Contains(out.String(), "hook="+name) {
			t.Errorf("%s: %s", name, &out)
		}
	}
}
