package admin

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Shown is a page of a relay: JSON, or a line of text where the status says that
// something is wrong.
type Shown struct {
	Status int
	Body   []byte
}

// RelayPages returns the pages that show what a relay does, /allocations, /usage
// and /stats, and change nothing. They ask nobody who he is: that is for whoever
// serves them.
func RelayPages(relay Relay, since time.Time) http.Handler {
	mux := http.NewServeMux()
	cfg := &Config{Relay: relay, Since: since}
	allocationPages(mux, cfg)
	usagePages(mux, cfg)
	return mux
}

// Show returns the page that h has at a path with a query, if it is no longer
// than most bytes.
func Show(ctx context.Context, h http.Handler, target string, most int) Shown {
	at, err := url.ParseRequestURI(target)
	if err != nil {
		return Shown{http.StatusBadRequest, []byte("admin: this is no path of a page\n")}
	}
	r := (&http.Request{Method: http.MethodGet, URL: at, Host: "relay", Header: http.Header{}, Body: http.NoBody}).WithContext(ctx)
	page := buffer{header: http.Header{}, left: most, Shown: Shown{Status: http.StatusOK}}
	h.ServeHTTP(&page, r)
	if page.left < 0 {
		return Shown{http.StatusInsufficientStorage, []byte("admin: the page is too long: ask for less of it, by limit\n")}
	}
	return page.Shown
}

// buffer keeps a page that is written to it. It belongs to one call of Show.
type buffer struct {
	header http.Header
	left   int // bytes; below 0: more were written
	Shown
}

func (b *buffer) Header() http.Header { return b.header }

func (b *buffer) WriteHeader(status int) { b.Status = status }

func (b *buffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		b.left = -1
		return 0, io.ErrShortWrite
	}
	b.Body = append(b.Body, p...)
	return len(p), nil
}

// shownPages show what a relay of the fleet does: one that is named, or the one
// that has a host.
func shownPages(mux *http.ServeMux, cfg *Config) {
	own := http.Handler(http.NotFoundHandler())
	if cfg.Relay != nil {
		own = RelayPages(cfg.Relay, cfg.Since)
	}
	mux.HandleFunc("GET /nodes/{node}/{page...}", func(w http.ResponseWriter, r *http.Request) {
		target := targetOf("/"+r.PathValue("page"), r)
		shown(w, r, func(ctx context.Context) (Shown, error) {
			n, err := relayNode(ctx, cfg, r.PathValue("node"))
			switch {
			case err != nil:
				return Shown{}, err
			case cfg.Fleet == nil:
				return Show(ctx, own, target, maxShown), nil
			}
			return cfg.Fleet.Page(ctx, n.ID, target)
		})
	})
	if cfg.Fleet == nil {
		return
	}
	byHost := func(w http.ResponseWriter, r *http.Request) {
		shown(w, r, func(ctx context.Context) (Shown, error) {
			id, err := pathID(r)
			if err != nil {
				return Shown{}, err
			}
			relay, err := cfg.Fleet.RelayOf(ctx, id)
			if err != nil {
				return Shown{}, err
			}
			return cfg.Fleet.Page(ctx, relay, targetOf(r.URL.Path, r))
		})
	}
	mux.HandleFunc("GET /allocations/{id}", byHost)
	mux.HandleFunc("GET /allocations/{id}/players", byHost)
}

// maxShown bounds what this process shows of itself in bytes, as the cluster does
// what relays show.
const maxShown = 1 << 20

func targetOf(path string, r *http.Request) string {
	return (&url.URL{Path: path, RawQuery: r.URL.RawQuery}).RequestURI()
}

func shown(w http.ResponseWriter, r *http.Request, show func(context.Context) (Shown, error)) {
	var page Shown
	err := within(r.Context(), func(ctx context.Context) (err error) {
		page, err = show(ctx)
		return err
	})
	if err != nil {
		answer(w, nil, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if page.Status != http.StatusOK {
		h.Set("Content-Type", "text/plain; charset=utf-8")
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(page.Status)
	_, _ = w.Write(page.Body) // The error is the reader's own.
}

// pathID returns the allocation that the path names.
func pathID(r *http.Request) (proto.AllocationID, error) {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		return id, badQuery(err)
	}
	return id, nil
}
