package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

// Tests compare spec with the answers of the handler.
//
//go:embed openapi.yaml
var spec string

// gzippedSpec returns spec as gzip, and an entity tag for both.
var gzippedSpec = sync.OnceValues(func() (gzipped, tag string) {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // Neither it nor a Buffer fails.
	_, _ = w.Write([]byte(spec))
	_ = w.Close()
	sum := sha256.Sum256([]byte(spec))
	return b.String(), `W/"` + hex.EncodeToString(sum[:8]) + `"`
})

// specMaxAge is for how long a client or a proxy need not ask again.
const specMaxAge = "public, max-age=3600"

// serveSpec answers with the description, whose requests need no token and count by their address.
func (h *Handler) serveSpec(w http.ResponseWriter, r *http.Request) (status int, _ *api.Problem) {
	if problem := h.limits.countUnauthenticated(forwarded.Find(r, h.proxies).Prefix); problem != nil {
		return 0, problem
	}
	gzipped, tag := gzippedSpec()
	header := w.Header()
	header.Set("Cache-Control", specMaxAge)
	header.Add("Vary", "Accept-Encoding")
	header.Set("ETag", tag)
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return http.StatusNotModified, nil
	}
	content := spec
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		content = gzipped
	}
	header.Set("Content-Type", typeYAML)
	header.Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(content))
	return http.StatusOK, nil
}
