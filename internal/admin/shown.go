package admin

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
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

// nodePage is any page of a relay, by the name of the relay.
const nodePage = "GET /nodes/{node}/{page...}"

// shownPages show what a relay of the fleet does: one that is named, or the one
// that has a host. A process without a fleet shows its own by its name.
func shownPages(mux *http.ServeMux, cfg *Config) {
	named := func(ctx context.Context, r *http.Request) (string, error) {
		n, err := relayNode(ctx, cfg, r.PathValue("node"))
		return n.ID, err
	}
	if cfg.Fleet == nil {
		own := http.Handler(http.NotFoundHandler())
		if cfg.Relay != nil {
			own = RelayPages(cfg.Relay, cfg.Since)
		}
		mux.HandleFunc(nodePage, func(w http.ResponseWriter, r *http.Request) {
			err := within(r.Context(), func(ctx context.Context) error {
				_, err := named(ctx, r)
				return err
			})
			if err != nil {
				answer(w, nil, err)
				return
			}
			r.URL = behindNode(r)
			own.ServeHTTP(w, r)
		})
		return
	}
	ofHost := func(ctx context.Context, r *http.Request) (string, error) {
		id, err := pathID(r)
		if err != nil {
			return "", err
		}
		return cfg.Fleet.RelayOf(ctx, id)
	}
	for page, relay := range map[string]func(context.Context, *http.Request) (string, error){
		nodePage: named, "GET /allocations/{id}": ofHost, "GET /allocations/{id}/players": ofHost,
	} {
		mux.HandleFunc(page, func(w http.ResponseWriter, r *http.Request) { far(w, r, cfg.Fleet, relay) })
	}
}

// behindNode is where the relay itself has the page that is asked for.
func behindNode(r *http.Request) *url.URL {
	if r.PathValue("node") == "" {
		return r.URL
	}
	return &url.URL{Path: "/" + r.PathValue("page"), RawQuery: r.URL.RawQuery}
}

// far finds a relay that is another process, and shows a page of it.
func far(w http.ResponseWriter, r *http.Request, f Fleet, find func(context.Context, *http.Request) (string, error)) {
	var page Shown
	err := within(r.Context(), func(ctx context.Context) error {
		relay, err := find(ctx, r)
		if err == nil {
			page, err = f.Page(ctx, relay, behindNode(r).RequestURI())
		}
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
