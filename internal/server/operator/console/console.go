// Package console is the operator's page in a browser: files of internal/server/operator/console/web, which
// make console builds into dist, and the live values that they show.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed dist
var dist embed.FS

// policy lets the page load nothing but its own files, and call nothing but this server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

type file struct {
	kind, tag string
	content   []byte
	gzipped   func() []byte // compressed by the first request
}

// Console serves the page and its values. Run must be running for live values.
type Console struct {
	cfg       Config
	files     map[string]file // by path below /console/
	collector collector
	log       *slog.Logger
}

// New returns a console.
func New(cfg Config, log *slog.Logger) (*Console, error) {
	c := &Console{cfg: cfg, files: map[string]file{}, log: log}
	c.collector.init(cfg)
	root, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		c.files[name], err = newFile(name, content)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.files[""] = c.files["index.html"]
	return c, nil
}

func newFile(name string, content []byte) (file, error) {
	kinds := map[string]string{
		".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".css": "text/css; charset=utf-8", ".txt": "text/plain; charset=utf-8",
	}
	digest := sha256.Sum256(content)
	f := file{kind: kinds[path.Ext(name)], tag: `"` + hex.EncodeToString(digest[:8]) + `"`, content: content}
	if f.kind == "" {
		return file{}, fmt.Errorf("%s has an unknown type", name)
	}
	f.gzipped = sync.OnceValue(func() []byte {
		var zipped bytes.Buffer
		w, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		_, _ = w.Write(content) // A buffer takes all.
		_ = w.Close()
		return zipped.Bytes()
	})
	return f, nil
}

// ServeHTTP serves GET /console/… The caller must have authorized requests for
// /console/data/…; the other files contain no values.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	switch name := strings.TrimPrefix(r.URL.Path, "/console/"); name {
	case "data/events":
		c.collector.serve(w, r)
	case "data/log":
		c.answer(w, c.cfg.Log.Lines())
	case "data/audit":
		c.answer(w, c.cfg.Audit.Lines())
	case "data/refusals":
		c.answer(w, c.refusals())
	case "data/sources":
		c.answer(w, c.collector.sources.list(time.Now()))
	case "data/reasons":
		c.answer(w, reasons)
	case "data/day":
		c.answer(w, c.collector.history())
	case "data/fleet":
		c.answer(w, c.collector.state(r.Context()))
	default:
		c.serveFile(w, r, name)
	}
}

func (c *Console) serveFile(w http.ResponseWriter, r *http.Request, name string) {
	f, ok := c.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	content := f.content
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content = f.gzipped()
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func (c *Console) answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(value) // An error means that the browser has disconnected.
}
