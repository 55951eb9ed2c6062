package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// The bounds of an admin token in bytes: longer than anybody guesses, and short
// enough for a header.
const (
	minToken = 16
	maxToken = 4096
)

// ErrToken is returned for a token that cannot be used.
var ErrToken = errors.New("admin: the token is not 16 to 4096 visible ASCII characters")

// CheckToken returns ErrToken for a token that is too short, too long, or cannot
// be sent in a header.
func CheckToken(token string) error {
	if len(token) < minToken || len(token) > maxToken {
		return ErrToken
	}
	for _, b := range []byte(token) {
		if b <= ' ' || b > '~' {
			return ErrToken
		}
	}
	return nil
}

// access decides who may see and do what. It does not change.
type access struct {
	digest [sha256.Size]byte
	token  bool
	public bool // others can reach the listener
}

func newAccess(cfg *Config) access {
	a := access{token: cfg.Token != "", public: cfg.AnyHost}
	a.digest = sha256.Sum256([]byte(cfg.Token))
	return a
}

// limit lets requests through that may see a page: with a token those that have
// it, and without one those from the machine itself. Probes are for everybody,
// since what sends them has no secrets; so are numbers, where there is no token.
func (a access) limit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/livez" || r.URL.Path == "/readyz":
		case a.token && !a.has(r):
			w.Header().Set("WWW-Authenticate", `Bearer realm="ferry admin"`)
			http.Error(w, "admin: this page asks for the token of admin_token_file", http.StatusUnauthorized)
			return
		case a.token || !a.public || numbers(r) || local(r):
		default:
			http.Error(w, "admin: without admin_token_file this page is for requests from the machine itself", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// has reports whether the request carries the token. Digests are compared, so
// that the time tells nothing about length or content.
func (a access) has(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	digest := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(digest[:], a.digest[:]) == 1
}

// numbers reports whether a page names neither players nor settings.
func numbers(r *http.Request) bool {
	switch r.URL.Path {
	case "/", "/metrics", "/drain":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	return false
}

// local reports whether a request comes from this machine, and was sent to it
// under a name that no web page can have chosen.
func local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() && ownHost(r.Host)
}

// ErrPublic is wrapped by what AddrAllowed returns.
var ErrPublic = errors.New("admin: refused on an address that others can reach")

// AddrAllowed reports whether the admin pages may be served at addr: on
// loopback; with a token anywhere over TLS; or anywhere if the operator said so.
func AddrAllowed(addr netip.AddrPort, public, token, tls bool) error {
	switch {
	case public || addr.Addr().Unmap().IsLoopback() || token && tls:
		return nil
	case token:
		return fmt.Errorf("%w (%s), since the token would go over the network in the clear: set tls_cert and tls_key, or admin_public", ErrPublic, addr)
	}
	return fmt.Errorf("%w (%s), since it has no authentication: set admin_token_file, and tls_cert and tls_key, or admin_public", ErrPublic, addr)
}
