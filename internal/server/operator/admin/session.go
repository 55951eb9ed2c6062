package admin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	sessionCookie = "ferry_admin"
	// sessionFor is for how long a sign-in is good: a working day.
	sessionFor = 12 * time.Hour
	// maxRevoked is how many sign-outs are kept. Beyond it, the oldest is forgotten.
	maxRevoked = 10_000

	sessionIDLen = 16
	// sessionHead is the size of a session without its grant, its person and its MAC.
	sessionHead   = sessionIDLen + 8 + 1
	maxGrant      = 255 // bytes
	maxPerson     = 255 // bytes
	maxLoginBytes = 2 * maxToken
)

var (
	errLogin   = errors.New("admin: this is not the token of admin_token_file")
	errNoLogin = errors.New("admin: without admin_token_file there is nothing to sign in to")
)

type session struct {
	id  [sessionIDLen]byte
	end time.Time
	// grant is the entry of the lists of OIDC that gave the person a role, and empty for a
	// sign-in with the token. The role is looked up for each request, so that it ends when the
	// entry is removed.
	grant, person string
}

func (s *session) name() string { return fmt.Sprintf("session %x", s.id[:4]) }

// Sessions are the sign-ins of browsers. A session is a random id, the time of its end and a
// person, with a MAC under the token: it stays good over a restart, and ends with the token. Any
// goroutine may use it.
type Sessions struct {
	now    func() time.Time
	failed failedSignIns
	file   string // of sign-outs; empty: none
	log    *slog.Logger
	began  time.Time

	saving sync.Mutex // held while the file is written; taken before mu

	mu      sync.Mutex // guards revoked and loaded
	revoked map[[sessionIDLen]byte]time.Time
	loaded  bool // from the file
}

// NewSessions returns the sessions of a process. They outlive a reload of the settings. The file
// has the sign-outs, for the next process. Without one (empty), a session of an earlier process is
// not good, since it may have been signed out.
func NewSessions(file string, log *slog.Logger) *Sessions {
	return &Sessions{
		now: time.Now, file: file, log: log, began: time.Now().Truncate(time.Second), revoked: map[[sessionIDLen]byte]time.Time{},
	}
}

func (s *Sessions) issue(token, grant, person string) string {
	b := make([]byte, sessionHead, sessionHead+len(grant)+len(person)+sha256.Size)
	rand.Read(b[:sessionIDLen])
	binary.BigEndian.PutUint64(b[sessionIDLen:], uint64(s.now().Add(sessionFor).Unix()))
	b[sessionHead-1] = byte(len(grant))
	b = append(append(b, grant...), person...)
	return encodeWithMAC(sessionMAC, b, token)
}

const sessionMAC = "ferry admin session"

func encodeWithMAC(purpose string, content []byte, token string) string {
	return base64.RawURLEncoding.EncodeToString(append(content, tokenMAC(purpose, content, token)...))
}

// tokenMAC is a MAC under the token, for one purpose.
func tokenMAC(purpose string, content []byte, token string) []byte {
	m := hmac.New(sha256.New, []byte(purpose+"\x00"+token))
	m.Write(content)
	return m.Sum(nil)
}

func verifyMAC(purpose, text, token string) ([]byte, bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < sha256.Size {
		return nil, false
	}
	content, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	return content, hmac.Equal(mac, tokenMAC(purpose, content, token))
}

func (s *Sessions) parse(value, token string) (v session, ok bool) {
	b, ok := verifyMAC(sessionMAC, value, token)
	if !ok || len(b) < sessionHead || len(b) < sessionHead+int(b[sessionHead-1]) {
		return v, false
	}
	copy(v.id[:], b)
	v.end = time.Unix(int64(binary.BigEndian.Uint64(b[sessionIDLen:])), 0)
	text := string(b[sessionHead:])
	v.grant, v.person = text[:b[sessionHead-1]], text[b[sessionHead-1]:]
	if s.file == "" && v.end.Add(-sessionFor).Before(s.began) {
		return v, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load()
	_, out := s.revoked[v.id]
	return v, !out && s.now().Before(v.end)
}

func (s *Sessions) of(r *http.Request, token string) (session, bool) {
	for _, c := range r.CookiesNamed(sessionCookie) {
		if v, ok := s.parse(c.Value, token); ok {
			return v, true
		}
	}
	return session{}, false
}

func (s *Sessions) revoke(r *http.Request, token string) {
	for _, c := range r.CookiesNamed(sessionCookie) {
		if v, ok := s.parse(c.Value, token); ok && s.use(v.id, v.end) {
			s.save()
		}
	}
}

// use makes an id good no more until its end, and reports whether it was.
func (s *Sessions) use(id [sessionIDLen]byte, end time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, used := s.revoked[id]; used {
		return false
	}
	if len(s.revoked) >= maxRevoked {
		s.forgetOldest()
	}
	s.revoked[id] = end
	return true
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

func (a access) state(r *http.Request) operator.Login {
	l := operator.Login{Required: a.token, OIDC: a.oidc.host()}
	role, v := a.roleOf(r)
	if l.SignedIn = role != roleNone; l.SignedIn {
		l.Role, l.Person = role.String(), v.person
	}
	return l
}

func adminCookie(r *http.Request, name, value, path string, age time.Duration, site http.SameSite) *http.Cookie {
	return &http.Cookie{
		Name: name, Value: value, Path: path, MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: site, Secure: r.TLS != nil,
	}
}

// loginPages registers /console/login: GET returns the state, POST signs in with the token
// {"token": …}, DELETE signs out.
func loginPages(mux *http.ServeMux, a access, log *slog.Logger) {
	cookie := func(r *http.Request, value string, age time.Duration) *http.Cookie {
		return adminCookie(r, sessionCookie, value, "/", age, http.SameSiteStrictMode)
	}
	mux.HandleFunc("GET /console/login", func(w http.ResponseWriter, r *http.Request) {
		writeAnswer(w, a.state(r), nil)
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
			refuseSignIn(w, r, a.sessions, log, http.StatusForbidden, "", errLogin)
			return
		}
		log.Info("operator: signed in to the console", "from", r.RemoteAddr)
		http.SetCookie(w, cookie(r, a.sessions.issue(a.secret, "", ""), sessionFor))
		writeAnswer(w, operator.Login{Required: true, SignedIn: true, Role: roleOperator.String(), OIDC: a.oidc.host()}, nil)
	})
	mux.HandleFunc("DELETE /console/login", func(w http.ResponseWriter, r *http.Request) {
		if a.token {
			a.sessions.revoke(r, a.secret)
		}
		http.SetCookie(w, cookie(r, "", -time.Second))
		state := operator.Login{Required: a.token, OIDC: a.oidc.host()}
		if !a.token {
			state = a.state(r)
		}
		writeAnswer(w, state, nil)
	})
}
