// Package urlpath has the path by which the servers of this module route a request.
package urlpath

import (
	"net/http"
	"strings"
)

// Of returns the path of a request without the first of two slashes at its beginning, which Unity's SDK
// makes of a base URL with a trailing slash, and which a ServeMux would redirect.
func Of(r *http.Request) string {
	if r.URL.RawPath == "" && strings.HasPrefix(r.URL.Path, "//") {
		return r.URL.Path[1:]
	}
	return r.URL.Path
}
