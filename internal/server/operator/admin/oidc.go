package admin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/ferryrelay/ferry/internal/server/players/outcall"
)

// OIDC is the sign-in of people at an issuer of OpenID Connect, by the authorization code flow
// with PKCE. It does not change.
type OIDC struct {
	// Issuer is the URL of the issuer, ClientID and ClientSecret are of this client there. An
	// empty secret is that of a public client.
	Issuer, ClientID, ClientSecret string
	// Operators and Viewers are those with a role: verified e-mail addresses, or group:NAME of
	// the claim groups.
	Operators, Viewers []string
}

const (
	// oidcCookie holds what the browser must bring back from the issuer, for oidcFor.
	oidcCookie = "ferry_oidc"
	oidcPath   = "/console/oidc"
	oidcFor    = 10 * time.Minute
	oidcMAC    = "ferry admin oidc"
	// issuerWithin bounds one request to the issuer, and issuerRetry how soon the issuer is asked
	// again after a failure.
	issuerWithin = 5 * time.Second
	issuerRetry  = 3 * time.Second
	groupPrefix  = "group:"
)

// oidcSignIn is OIDC with what the issuer has published. The methods of nil do nothing. Any
// goroutine may use it.
type oidcSignIn struct {
	OIDC
	client *http.Client
	gate   exchangeGate

	mu       sync.Mutex // guards what follows
	provider *oidc.Provider
	failed   time.Time
	err      error
}

func newOIDCSignIn(cfg *OIDC) *oidcSignIn {
	if cfg == nil {
		return nil
	}
	return &oidcSignIn{
		OIDC: *cfg, gate: exchangeGate{all: make(chan struct{}, maxExchanges), byAddress: map[netip.Prefix]*addressGate{}},
		client: &http.Client{
			Timeout: issuerWithin, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		},
	}
}

func (o *oidcSignIn) host() string {
	if o == nil {
		return ""
	}
	u, err := url.Parse(o.Issuer)
	if err != nil {
		return o.Issuer
	}
	return u.Host
}

func (o *oidcSignIn) role(grant string) role {
	switch {
	case o == nil:
		return roleNone
	case slices.Contains(o.Operators, grant):
		return roleOperator
	case slices.Contains(o.Viewers, grant):
		return roleViewer
	}
	return roleNone
}

// discover returns the provider. It asks the issuer once, and after a failure not before
// issuerRetry.
func (o *oidcSignIn) discover() (*oidc.Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.provider != nil {
		return o.provider, nil
	}
	if !o.failed.IsZero() && time.Since(o.failed) < issuerRetry {
		return nil, o.err
	}
	// The provider keeps the context for its later requests.
	provider, err := oidc.NewProvider(oidc.ClientContext(context.Background(), o.client), o.Issuer)
	if err != nil {
		o.failed, o.err = time.Now(), fmt.Errorf("admin: the issuer %s does not answer as one: %w", o.host(), err)
		return nil, o.err
	}
	o.provider = provider
	return provider, nil
}

// oauth returns the client of a sign-in. The issuer sends the browser back to the host by which it
// came, and refuses a host that is not registered there. Only loopback has no TLS, by the pages or by a
// proxy before them.
func (o *oidcSignIn) oauth(p *oidc.Provider, r *http.Request) *oauth2.Config {
	scheme := "https://"
	if r.TLS == nil && isLoopbackHostHeader(r.Host) {
		scheme = "http://"
	}
	return &oauth2.Config{
		ClientID: o.ClientID, ClientSecret: o.ClientSecret, Endpoint: p.Endpoint(),
		RedirectURL: scheme + r.Host + oidcPath + "/callback", Scopes: []string{oidc.ScopeOpenID, "email", "groups"},
	}
}

type oidcState struct {
	ID       [sessionIDLen]byte `json:"id"` // the state parameter
	Nonce    string             `json:"nonce"`
	Verifier string             `json:"verifier"` // of PKCE
	Until    int64              `json:"until"`    // Unix seconds
}

func (s *oidcState) text() string { return base64.RawURLEncoding.EncodeToString(s.ID[:]) }

// oidcPages registers /console/oidc/begin, which sends the browser to the issuer, and
// /console/oidc/callback, to which the issuer sends it back.
func oidcPages(mux *http.ServeMux, a access, audit, log *slog.Logger) {
	if a.oidc == nil || !a.token {
		return
	}
	mux.HandleFunc("GET "+oidcPath+"/begin", func(w http.ResponseWriter, r *http.Request) {
		provider, err := a.oidc.discover()
		if err != nil {
			refuseSignIn(w, r, a.sessions, log, http.StatusBadGateway, "", err)
			return
		}
		s := oidcState{Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Until: a.sessions.now().Add(oidcFor).Unix()}
		rand.Read(s.ID[:])
		content, err := json.Marshal(s)
		if err != nil {
			refuseSignIn(w, r, a.sessions, log, http.StatusInternalServerError, "", err)
			return
		}
		// Lax, since the issuer's page sends the browser back.
		http.SetCookie(w, adminCookie(r, oidcCookie, encodeWithMAC(oidcMAC, content, a.secret), oidcPath, oidcFor, http.SameSiteLaxMode))
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, a.oidc.oauth(provider, r).AuthCodeURL(s.text(), oidc.Nonce(s.Nonce), oauth2.S256ChallengeOption(s.Verifier)),
			http.StatusFound)
	})
	mux.HandleFunc("GET "+oidcPath+"/callback", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, adminCookie(r, oidcCookie, "", oidcPath, -time.Second, http.SameSiteLaxMode))
		grant, person, err := a.finishOIDC(r)
		if err != nil {
			status := http.StatusForbidden
			if errors.Is(err, errIssuerBusy) {
				status = http.StatusServiceUnavailable
			}
			refuseSignIn(w, r, a.sessions, log, status, person, fmt.Errorf("%w\n\nTry again at /console/", err))
			return
		}
		log.Info("operator: signed in to the console", "person", person, "role", a.oidc.role(grant).String(), "from", r.RemoteAddr)
		if audit != nil {
			audit.Info("GET "+oidcPath+"/callback", "status", http.StatusOK, "by", person, "role", a.oidc.role(grant).String(),
				"from", r.RemoteAddr)
		}
		http.SetCookie(w, adminCookie(r, sessionCookie, a.sessions.issue(a.secret, grant, person), "/", sessionFor, http.SameSiteStrictMode))
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'")
		h.Set("Referrer-Policy", "no-referrer") // The URL has the code.
		h.Set("Cache-Control", "no-store")
		// The next page is one of this site's own, so that the browser sends the cookie, which a
		// redirect of the issuer's page would not get.
		fmt.Fprint(w, `<!doctype html><meta http-equiv="refresh" content="0;url=/console/"><title>Ferry</title><a href="/console/">Console</a>`)
	})
}

var (
	errOIDCState  = errors.New("admin: this sign-in was not begun in this browser, is too old or was used before")
	errOIDCRole   = errors.New("has no role here: admin_oidc_operators and admin_oidc_viewers list those that do, by verified e-mail address or group")
	errOIDCAnswer = errors.New("admin: the issuer's answer is not valid")
)

// finishOIDC checks the return of a browser from the issuer, gets the person's identity from
// there, and returns the entry of the lists that gives it a role.
func (a access) finishOIDC(r *http.Request) (grant, person string, err error) {
	query := r.URL.Query()
	s, ok := a.oidcStateOf(r)
	if !ok || subtle.ConstantTimeCompare([]byte(s.text()), []byte(query.Get("state"))) != 1 || !a.sessions.use(s.ID, time.Unix(s.Until, 0)) {
		return "", "", errOIDCState
	}
	if refusal := query.Get("error"); refusal != "" {
		return "", "", fmt.Errorf("admin: the issuer refuses: %.100q", refusal)
	}
	provider, err := a.oidc.discover()
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(r.Context(), a.oidc.client), 2*issuerWithin)
	defer cancel()
	leave, err := a.oidc.gate.enter(ctx, clientAddress(r))
	if err != nil {
		return "", "", err
	}
	defer leave()
	token, err := a.oidc.oauth(provider, r).Exchange(ctx, query.Get("code"), oauth2.VerifierOption(s.Verifier))
	if err != nil {
		return "", "", errors.New("admin: the issuer does not accept the code of this sign-in") // The error may have secrets.
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.VerifierContext(ctx, &oidc.Config{ClientID: a.oidc.ClientID, Now: a.sessions.now}).Verify(ctx, raw)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", errOIDCAnswer, err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(s.Nonce)) != 1 {
		return "", "", fmt.Errorf("%w: its nonce is of another sign-in", errOIDCAnswer)
	}
	var claims oidcClaims
	if err := id.Claims(&claims); err != nil {
		return "", "", fmt.Errorf("%w: %w", errOIDCAnswer, err)
	}
	person = claims.person(id.Subject)
	if grant = a.oidc.grantOf(&claims); grant == "" {
		return "", person, fmt.Errorf("admin: %s %w", person, errOIDCRole)
	}
	return grant, person, nil
}

func (a access) oidcStateOf(r *http.Request) (s oidcState, ok bool) {
	c, err := r.Cookie(oidcCookie)
	if err != nil {
		return s, false
	}
	content, ok := verifyMAC(oidcMAC, c.Value, a.secret)
	if !ok || json.Unmarshal(content, &s) != nil {
		return s, false
	}
	return s, a.sessions.now().Before(time.Unix(s.Until, 0))
}

type oidcClaims struct {
	Email    string   `json:"email"`
	Verified bool     `json:"email_verified"`
	Groups   []string `json:"groups"`
}

// person is the name of a person in the log: its verified e-mail address, else its subject.
func (c *oidcClaims) person(subject string) string {
	name := subject
	if c.Verified && c.Email != "" {
		name = c.Email
	}
	return strings.ToValidUTF8(name[:min(len(name), maxPerson)], "?")
}

func (o *oidcSignIn) grantOf(c *oidcClaims) string {
	for _, list := range [][]string{o.Operators, o.Viewers} {
		for _, entry := range list {
			group, isGroup := strings.CutPrefix(entry, groupPrefix)
			if isGroup && slices.Contains(c.Groups, group) || !isGroup && c.Verified && strings.EqualFold(entry, c.Email) {
				return entry
			}
		}
	}
	return ""
}

// mail matches an address of one person, since no pattern or name around it ever equals the claim email.
var mail = regexp.MustCompile(`^[^@\s*:<>]+@[^@\s*:<>]+$`)

var ErrOIDC = errors.New("admin_oidc")

// Check returns an error for settings that cannot work.
func (o *OIDC) Check() error {
	if _, err := outcall.ParseURL(o.Issuer, false); err != nil {
		return fmt.Errorf("%w_issuer: %q is not an https:// URL (http:// on loopback only)", ErrOIDC, o.Issuer)
	}
	if o.ClientID == "" {
		return fmt.Errorf("%w_client_id is missing", ErrOIDC)
	}
	if len(o.Operators)+len(o.Viewers) == 0 {
		return fmt.Errorf("%w_operators or admin_oidc_viewers must list somebody", ErrOIDC)
	}
	for _, name := range slices.Concat(o.Operators, o.Viewers) {
		group, isGroup := strings.CutPrefix(name, groupPrefix)
		if len(name) > maxGrant || isGroup && strings.TrimSpace(group) != group || isGroup && group == "" || !isGroup && !mail.MatchString(name) {
			return fmt.Errorf("%w: %q is neither an e-mail address nor group:NAME of at most %d bytes", ErrOIDC, name, maxGrant)
		}
	}
	return nil
}
