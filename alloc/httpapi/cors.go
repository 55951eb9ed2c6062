package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const anyOrigin = "*"

// preflightAge is the time in seconds for which a browser may cache a preflight.
const preflightAge = "600"

// baseHeaders are the request headers that a page may always send. They are listed
// because the wildcard of CORS does not cover Authorization.
const baseHeaders = "Authorization, Content-Type, Accept"

// maxHeaderNames bounds the header names of a preflight that are echoed.
const maxHeaderNames = 32

// origins is the set of origins whose pages may read answers. It is immutable.
type origins struct {
	all  bool
	list []string // lower case
}

func newOrigins(allowed []string) origins {
	if len(allowed) == 0 || slices.Contains(allowed, anyOrigin) {
		return origins{all: true}
	}
	o := origins{list: make([]string, len(allowed))}
	for i, a := range allowed {
		o.list[i] = strings.ToLower(a)
	}
	return o
}

// validOrigin reports whether s can be an entry of Config.AllowOrigins: "*",
// "null", or scheme and host as a browser writes them.
func validOrigin(s string) bool {
	if s == anyOrigin || s == "null" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host != "" && strings.EqualFold(u.Scheme+"://"+u.Host, s)
}

func (o origins) setHeaders(h http.Header, origin string) {
	switch {
	case o.all:
		h.Set("Access-Control-Allow-Origin", anyOrigin)
	default:
		h.Add("Vary", "Origin")
		if !slices.Contains(o.list, strings.ToLower(origin)) {
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
	}
	h.Set("Access-Control-Expose-Headers", headerRequestID+", Retry-After")
}

func preflight(w http.ResponseWriter, r *http.Request, method string) int {
	h := w.Header()
	h.Set("Allow", allow(method))
	if h.Get("Access-Control-Allow-Origin") != "" {
		h.Set("Access-Control-Allow-Methods", method)
		h.Set("Access-Control-Allow-Headers", allowedHeaders(r.Header.Get("Access-Control-Request-Headers")))
		h.Set("Access-Control-Max-Age", preflightAge)
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return http.StatusNoContent
}

// toolHeaders are request headers that a page's tools add to each of its calls: tracing (W3C
// Trace Context and Baggage, Sentry), and loaders that bypass the cache.
var toolHeaders = []string{"traceparent", "tracestate", "baggage", "sentry-trace", "cache-control", "pragma"}

// allowedHeaders returns the base headers and those requested headers that tools of a page
// add, or Unity's web requests, where names depend on the version.
func allowedHeaders(asked string) string {
	allowed := baseHeaders
	names := strings.Split(asked, ",")
	for _, name := range names[:min(len(names), maxHeaderNames)] {
		name = strings.ToLower(strings.TrimSpace(name))
		unity := strings.HasPrefix(name, "unity-") || strings.HasPrefix(name, "x-unity-")
		if unity && isHeaderName(name) || slices.Contains(toolHeaders, name) {
			allowed += ", " + name
		}
	}
	return allowed
}

func isHeaderName(name string) bool {
	return len(name) <= 64 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
	})
}

func allow(method string) string {
	if method == http.MethodGet {
		method += ", " + http.MethodHead
	}
	return method + ", " + http.MethodOptions
}
