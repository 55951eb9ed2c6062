package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard keeps web pages of others out: a browser on the operator's machine
// reaches loopback, and would send what a page tells it to. A page that made a
// name of its own point here is known by that name in Host, and one that
// sends a request of its own by Origin or Sec-Fetch-Site.
func guard(h http.Handler, anyHost bool) http.Handler {
	h = http.NewCrossOriginProtection().Handler(h)
	if anyHost {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownHost(r.Host) {
			http.Error(w, "admin: ask for it by an IP address or as localhost", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// ownHost reports whether a Host header is one that no name server can have had
// a hand in.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}
