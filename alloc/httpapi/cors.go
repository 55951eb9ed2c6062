package httpapi

import (
	"net/http"
	"strings"

	"github.com/ferryrelay/ferry/internal/base/origin"
)

// preflightAge is the time in seconds for which a browser may cache a preflight.
const preflightAge = "600"

// baseHeaders are the request headers that a page may always send.
const baseHeaders = "Authorization, Content-Type, Accept"

// maxHeaderNames bounds the header names of a preflight that are echoed.
const maxHeaderNames = 32

// newOrigins returns the origins whose pages may read answers.
func newOrigins(allowed []string) (origin.List, error) {
	if len(allowed) == 1 && allowed[0] == noOrigin {
		return origin.List{}, nil
	}
	return origin.NewList(allowed)
}

func setOriginHeaders(h http.Header, allowed origin.List, asked string) {
	if allowed == nil {
		h.Set("Access-Control-Allow-Origin", origin.Any)
	} else {
		h.Add("Vary", "Origin")
		if !allowed.Contains(asked) {
			return
		}
		h.Set("Access-Control-Allow-Origin", asked)
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
		if r.Header.Get("Access-Control-Request-Private-Network") == "true" { // of a public page, to a relay in the player's network
			h.Set("Access-Control-Allow-Private-Network", "true")
		}
	}
	h.Add("Vary", "Access-Control-Request-Headers, Access-Control-Request-Private-Network")
	w.WriteHeader(http.StatusNoContent)
	return http.StatusNoContent
}

// allowedHeaders returns the base headers and the requested ones: an SDK, or a tool of the page such as
// tracing, adds its own, and the names depend on the version. The calls read none of them. They are named one by
// one because the wildcard of CORS does not cover Authorization. A page may not name those by which a proxy
// states the caller's address.
func allowedHeaders(asked string) string {
	allowed := baseHeaders
	names := strings.Split(asked, ",")
	for _, name := range names[:min(len(names), maxHeaderNames)] {
		name = strings.ToLower(strings.TrimSpace(name))
		base := name == "authorization" || name == "content-type" || name == "accept"
		ofProxy := strings.HasPrefix(name, "x-forwarded-") || name == "forwarded" || name == "x-real-ip"
		if isHeaderName(name) && !base && !ofProxy {
			allowed += ", " + name
		}
	}
	return allowed
}

func isHeaderName(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
	})
}

func allow(method string) string {
	if method == http.MethodGet {
		method += ", " + http.MethodHead
	}
	return method + ", " + http.MethodOptions
}
