// Package docs serves the documentation as web pages. They need no script and no other server.
package docs

import (
	"cmp"
	"embed"
	"net/http"
	"path"
	"strings"
)

// files are the pages, which TestPages renders from the Markdown of this directory, their pictures, and the
// protocol's test vectors.
//
//go:embed html *.svg vectors.json console/overview.png
var files embed.FS

// policy forbids everything that the pages do not need.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the pages below prefix, which ends in a slash.
func Handler(prefix string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := cmp.Or(strings.TrimPrefix(r.URL.Path, prefix), "index.html")
		if ext := path.Ext(name); ext == ".html" || ext == ".css" {
			name = "html/" + name
		}
		content, err := files.ReadFile(name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", map[string]string{
			".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
			".json": "application/json",
		}[path.Ext(name)])
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(content) // An error means that the client has gone.
	})
}
