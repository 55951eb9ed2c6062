package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// The length of an admin token in bytes: too long to guess, and short enough for a
// header.
const (
	minToken = 16
	maxToken = 4096
)

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

// access is immutable.
type access struct {
	digest   [sha256.Size]byte
	secret   string
	token    bool
	public   bool // other machines can reach the listener
	console  bool // there is one
	sessions *Sessions
	oidc     *oidcSignIn // nil: there is none
}

type role uint8

const (
	roleNone     role = iota
	roleViewer        // see everything but profiles
	roleOperator      // do everything
)

func (r role) String() string { return [...]string{"none", "viewer", "operator"}[r] }

// permits reports whether the role permits a request: a viewer may read pages, and nothing else.
// Profiles are for operators, since they cost processor time.
func (r role) permits(q *http.Request) bool {
	switch r {
	case roleOperator:
		return true
	case roleViewer:
		return (q.Method == http.MethodGet || q.Method == http.MethodHead) && !strings.HasPrefix(q.URL.Path, "/debug/")
	}
	return false
}

type Access struct {
	// Token is the bearer token that every request except health probes requires.
	// Empty: no token.
	Token string
	// AllowAnyHost accepts any Host header, for a public listener whose names are
	// not known.
	AllowAnyHost bool
	// OIDC signs people in to the console, with Token. Nil: only the token does.
	OIDC *OIDC
	// Sessions are the sign-ins of browsers. Nil: they end with this handler.
	Sessions *Sessions
	// Audit records what operators do. Nil: no record besides the log.
	Audit *slog.Logger
}

func newAccess(cfg *Access, console bool) access {
	a := access{secret: cfg.Token, token: cfg.Token != "", public: cfg.AllowAnyHost, console: console, sessions: cfg.Sessions}
	if a.sessions == nil {
		a.sessions = NewSessions("", slog.New(slog.DiscardHandler))
	}
	a.oidc = newOIDCSignIn(cfg.OIDC)
	a.digest = sha256.Sum256([]byte(cfg.Token))
	return a
}

// requireAccess passes authorized requests to h: with the token, with the cookie of a sign-in
// whose role permits it, or without a token from loopback. Health probes need no
// authorization, since probers have no secrets, and neither do the files of the console.
// Without a token, metrics need none either.
func (a access) requireAccess(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" || a.console && isConsoleFile(r) {
			h.ServeHTTP(w, r)
			return
		}
		role, _ := a.roleOf(r)
		switch {
		case role.permits(r):
		case role == roleViewer:
			http.Error(w, "admin: a viewer may only look: this needs the role operator (admin_oidc_operators)", http.StatusForbidden)
			return
		case a.token:
			w.Header().Set("WWW-Authenticate", `Bearer realm="ferry admin"`)
			http.Error(w, "admin: this page requires the token of admin_token_file", http.StatusUnauthorized)
			return
		default:
			http.Error(w, "admin: without admin_token_file this page accepts requests from loopback only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (a access) roleOf(r *http.Request) (role, session) {
	if !a.token {
		if !a.public || isPublicPage(r) || isLocal(r) {
			return roleOperator, session{}
		}
		return roleNone, session{}
	}
	if a.hasToken(r) {
		return roleOperator, session{}
	}
	v, ok := a.sessions.of(r, a.secret)
	switch {
	case !ok:
		return roleNone, v
	case v.grant == "":
		return roleOperator, v
	}
	return a.oidc.role(v.grant), v
}

func isConsoleFile(r *http.Request) bool {
	return r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/console/") && !strings.HasPrefix(r.URL.Path, "/console/data/")
}

func (a access) hasToken(r *http.Request) bool {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	return strings.EqualFold(scheme, "Bearer") && a.isToken(token)
}

// It compares digests, so that the time reveals neither length nor content.
func (a access) isToken(text string) bool {
	digest := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(digest[:], a.digest[:]) == 1
}

func isPublicPage(r *http.Request) bool {
	switch r.URL.Path {
	case "/", "/metrics", "/drain":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	return false
}

// isLocal reports whether a request comes from loopback with a Host header that is
// safe against DNS rebinding.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() && isLocalHostHeader(r.Host)
}

var ErrPublic = errors.New("admin: refused on an address that other machines can reach")

// AddrAllowed returns an error that wraps ErrPublic unless the admin pages may be
// served at addr: on loopback, anywhere with a token over TLS, or anywhere if the
// operator set admin_public.
func AddrAllowed(addr netip.AddrPort, public, token, tls bool) error {
	switch {
	case public || addr.Addr().Unmap().IsLoopback() || token && tls:
		return nil
	case token:
		return fmt.Errorf("%w (%s), since the token would go over the network in the clear: set tls_cert and tls_key, or admin_public", ErrPublic, addr)
	}
	return fmt.Errorf("%w (%s), since it has no authentication: set admin_token_file, and tls_cert and tls_key, or admin_public", ErrPublic, addr)
}

// rejectForeignPages rejects requests that a foreign web page makes in a browser on
// the machine of the operator. The Host header reveals DNS rebinding; Origin and
// Sec-Fetch-Site reveal cross-origin requests. A foreign page cannot read an answer, but a
// request alone starts a profile, takes a stream of the console or asks a whole fleet: a
// link to the console or the documentation is all that it may have.
func rejectForeignPages(h http.Handler, anyHost bool) http.Handler {
	h = http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !anyHost && !isLocalHostHeader(r.Host):
			http.Error(w, "admin: the Host header must be an IP address or localhost", http.StatusForbidden)
		case isForeign(r) && !isLink(r):
			http.Error(w, "admin: another site may only link to /console/ and /docs/", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// isForeign reports whether a browser sends a request for a page of another origin. The
// headers are missing in requests of other programs.
func isForeign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
		origin, err := url.Parse(r.Header.Get("Origin"))
		return r.Header.Get("Origin") != "" && (err != nil || origin.Host != r.Host)
	}
	return true
}

// isLink reports whether a request opens the console or the documentation in a window, as a
// link does, or the way back from an issuer.
func isLink(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" &&
		(isConsoleFile(r) || strings.HasPrefix(r.URL.Path, "/docs"))
}

// isLocalHostHeader reports whether a Host header is an IP address or localhost, which
// DNS rebinding cannot produce.
func isLocalHostHeader(host string) bool {
	name := hostName(host)
	_, err := netip.ParseAddr(name)
	return err == nil || strings.EqualFold(name, "localhost")
}

func isLoopbackHostHeader(host string) bool {
	name := hostName(host)
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(name, "localhost")
}

// hostName returns a Host header without its port and brackets.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}
