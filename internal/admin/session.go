package admin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// sessionCookie is the name of the cookie that stands for the token in a browser.
	sessionCookie = "ferry_admin"
	// sessionFor is for how long a sign-in is good: a working day.
	sessionFor = 12 * time.Hour
	// maxRevoked is how many sign-outs are kept. Beyond it, the oldest is forgotten.
	maxRevoked = 10_000

	sessionIDLen  = 16
	sessionLen    = sessionIDLen + 8 + sha256.Size
	maxLoginBytes = 2 * maxToken
)

var (
	errLogin   = errors.New("admin: this is not the token of admin_token_file")
	errNoLogin = errors.New("admin: without admin_token_file there is nothing to sign in to")
)

// Sessions are the sign-ins of browsers. A session is a random id and the time of its end,
// with a MAC under the token: it stays good over a restart, and ends with the token. Any
// goroutine may use it.
type Sessions struct {
	now func() time.Time

	mu      sync.Mutex // guards revoked
	revoked map[[sessionIDLen]byte]time.Time
}

// NewSessions returns the sessions of a process. They outlive a reload of the settings.
func NewSessions() *Sessions {
	return &Sessions{now: time.Now, revoked: map[[sessionIDLen]byte]time.Time{}}
}

// issue returns the cookie's value of a new session.
func (s *Sessions) issue(token string) string {
	var b [sessionLen]byte
	rand.Read(b[:sessionIDLen])
	binary.BigEndian.PutUint64(b[sessionIDLen:], uint64(s.now().Add(sessionFor).Unix()))
	copy(b[sessionIDLen+8:], sessionMAC(b[:sessionIDLen+8], token))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func sessionMAC(content []byte, token string) []byte {
	m := hmac.New(sha256.New, []byte("ferry admin session\x00"+token))
	m.Write(content)
	return m.Sum(nil)
}

// parse returns the id and the end of a session that is good.
func (s *Sessions) parse(value, token string) (id [sessionIDLen]byte, end time.Time, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil || len(b) != sessionLen || !hmac.Equal(b[sessionIDLen+8:], sessionMAC(b[:sessionIDLen+8], token)) {
		return id, end, false
	}
	copy(id[:], b)
	end = time.Unix(int64(binary.BigEndian.Uint64(b[sessionIDLen:])), 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, out := s.revoked[id]
	return id, end, !out && s.now().Before(end)
}

// isSignedIn reports whether a request has the cookie of a good session.
func (s *Sessions) isSignedIn(r *http.Request, token string) bool {
	for _, c := range r.CookiesNamed(sessionCookie) {
		if _, _, ok := s.parse(c.Value, token); ok {
			return true
		}
	}
	return false
}

// revoke ends the sessions of a request's cookies.
func (s *Sessions) revoke(r *http.Request, token string) {
	for _, c := range r.CookiesNamed(sessionCookie) {
		id, end, ok := s.parse(c.Value, token)
		if !ok {
			continue
		}
		s.mu.Lock()
		if len(s.revoked) >= maxRevoked {
			s.forgetOldest()
		}
		s.revoked[id] = end
		s.mu.Unlock()
	}
}

// forgetOldest is called with the lock held.
func (s *Sessions) forgetOldest() {
	var oldest [sessionIDLen]byte
	var first time.Time
	for id, end := range s.revoked {
		if first.IsZero() || end.Before(first) {
			oldest, first = id, end
		}
	}
	delete(s.revoked, oldest)
}

// Login is the response of /console/login.
type Login struct {
	// Required: the pages require a token. SignedIn: this request may see them.
	Required bool `json:"required"`
	SignedIn bool `json:"signed_in"`
}

// loginPages registers /console/login: GET returns the state, POST signs in with the token
// {"token": …}, DELETE signs out.
func loginPages(mux *http.ServeMux, cfg *Config, a access) {
	cookie := func(r *http.Request, value string, age time.Duration) *http.Cookie {
		return &http.Cookie{
			Name: sessionCookie, Value: value, Path: "/", MaxAge: int(age.Seconds()),
			HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
		}
	}
	mux.HandleFunc("GET /console/login", func(w http.ResponseWriter, r *http.Request) {
		writeAnswer(w, Login{Required: a.token, SignedIn: a.allows(r)}, nil)
	})
	mux.HandleFunc("POST /console/login", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Token string `json:"token"`
		}
		body := io.LimitReader(r.Body, maxLoginBytes)
		switch {
		case !a.token:
			http.Error(w, errNoLogin.Error(), http.StatusConflict)
			return
		case json.NewDecoder(body).Decode(&in) != nil || !a.isToken(in.Token):
			cfg.log().Warn("operator: sign-in refused", "from", r.RemoteAddr)
			http.Error(w, errLogin.Error(), http.StatusForbidden)
			return
		}
		cfg.log().Info("operator: signed in to the console", "from", r.RemoteAddr)
		http.SetCookie(w, cookie(r, cfg.Sessions.issue(cfg.Token), sessionFor))
		writeAnswer(w, Login{Required: true, SignedIn: true}, nil)
	})
	mux.HandleFunc("DELETE /console/login", func(w http.ResponseWriter, r *http.Request) {
		if a.token {
			cfg.Sessions.revoke(r, cfg.Token)
		}
		http.SetCookie(w, cookie(r, "", -time.Second))
		writeAnswer(w, Login{Required: a.token, SignedIn: !a.token && a.allows(r)}, nil)
	})
}
