package process

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const otherSecret = "another-secret-of-the-tests"

type reloading struct {
	running
	file config.Config // what a reload reads
	err  error         // or why it cannot
	log  *testkit.LogBuffer
}

func startReloading(t *testing.T, mode Mode, change func(*config.Config)) *reloading {
	t.Helper()
	r := &reloading{file: local(), log: new(testkit.LogBuffer)}
	change(&r.file)
	o := options(r.file, mode)
	o.Level = new(slog.LevelVar)
	o.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: o.Level}))
	o.Reload = func() (config.Loaded, error) { return config.Loaded{Config: r.file}, r.err }
	r.running = start(t, o)
	return r
}

func (r *reloading) shown(key string) string {
	for _, s := range r.settings.values() {
		if s.Key == key {
			return s.Value
		}
	}
	return "not there"
}

func (r *reloading) reload(t *testing.T) operator.ReloadResult {
	t.Helper()
	done, err := r.settings.Reload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func allowed(t *testing.T, r running, token string) bool {
	t.Helper()
	_, err := r.caller(token).Regions(t.Context())
	var problem *api.Problem
	if err != nil && (!errors.As(err, &problem) || problem.Status != 401) {
		t.Fatal(err)
	}
	return err == nil
}

// TestReload: tokens, limits, seats and the log's level change while the process
// runs; what cannot is named, and not shown as if it were in force.
func TestReload(t *testing.T) {
	t.Parallel()
	r := startReloading(t, Serve, func(*config.Config) {})
	if done := r.reload(t); len(done.Changed)+len(done.Restart) != 0 {
		t.Errorf("nothing has changed: %+v", done)
	}
	r.file.Tokens = []config.Token{{Secret: otherSecret, Project: "game", Environment: "test", Kind: "server"}}
	r.file.MaxSeats, r.file.LogLevel, r.file.JoinerDatagrams = 5, "debug", 7
	r.file.Region, r.file.PlayerPerMinute, r.file.DrainTimeout = "eu", 9, time.Minute
	done := r.reload(t)
	if got := strings.Join(changedKeys(done.Changed), " "); got != "max_seats joiner_datagrams player_per_minute log_level tokens" {
		t.Errorf("changed %s", got)
	}
	if got := strings.Join(changedKeys(done.Restart), " "); got != "region drain_timeout" {
		t.Errorf("need a restart: %s", got)
	}
	if allowed(t, r.running, secret) || !allowed(t, r.running, otherSecret) {
		t.Error("the old token is let in, or the new one is not")
	}
	caller := r.caller(otherSecret)
	if _, err := caller.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4}); err != nil {
		t.Errorf("5 seats of 5: %v", err)
	}
	var problem *api.Problem
	if _, err := caller.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); !errors.As(err, &problem) || problem.Status != 503 {
		t.Errorf("no seat is left: %v", err)
	}
	if !strings.Contains(r.log.String(), "level=DEBUG") {
		t.Error("nothing is logged at debug level")
	}
	for key, want := range map[string]string{"region": "default", "max_seats": "5", "log_level": "debug", "player_per_minute": "9",
		"drain_timeout": "0s", "tokens[0].secret": `"[hidden]"`} {
		if got := r.shown(key); got != want {
			t.Errorf("%s is shown as %s, want %s", key, got, want)
		}
	}
	if done := r.reload(t); len(done.Changed) != 0 || len(done.Restart) != 2 {
		t.Errorf("the same again: %+v", done)
	}
	r.opts.Level.Set(slog.LevelWarn) // as an operator would
	if got := r.shown("log_level"); got != "warn" {
		t.Errorf("the log's level is shown as %s", got)
	}
	r.reload(t)
	if got := r.opts.Level.Level(); got != slog.LevelWarn {
		t.Errorf("a reload that does not change the level sets it to %v", got)
	}
	if text := r.log.String(); strings.Contains(text, secret) || strings.Contains(text, otherSecret) {
		t.Error("the log shows a secret")
	}
}

// TestReloadRefused: a configuration with one fault changes nothing at all.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	r := startReloading(t, Serve, func(*config.Config) {})
	good := r.file
	for name, c := range map[string]struct {
		change func(*config.Config)
		err    error
		want   string
	}{
		"it cannot be read":   {func(*config.Config) {}, errors.New("ferry.yaml:3: unknown key"), "ferry.yaml:3"},
		"no token":            {func(c *config.Config) { c.Tokens = nil }, nil, "no token"},
		"a short token":       {func(c *config.Config) { c.Tokens = append(c.Tokens, config.Token{Secret: "x", Kind: "player"}) }, nil, "secret"},
		"no such certificate": {func(c *config.Config) { c.TLSCert, c.TLSKey = "/nowhere", "/nowhere" }, nil, "/nowhere"},
		"no such admin token": {func(c *config.Config) { c.AdminToken = "/nowhere" }, nil, "/nowhere"},
	} {
		r.file, r.err = good, c.err
		r.file.MaxSeats, r.file.LogLevel = 1, "error"
		r.file.Tokens = []config.Token{{Secret: otherSecret, Project: "game", Environment: "test", Kind: "server"}}
		c.change(&r.file)
		_, err := r.settings.Reload(t.Context())
		if !errors.Is(err, admin.ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if !allowed(t, r.running, secret) || allowed(t, r.running, otherSecret) || r.shown("max_seats") != "0" ||
			r.opts.Level.Level() != slog.LevelInfo {
			t.Errorf("%s: something has changed", name)
		}
		if !strings.Contains(r.log.String(), c.want) {
			t.Errorf("%s: the log does not say why", name)
		}
	}
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	r.file, r.err = good, nil
	if _, err := r.settings.Reload(t.Context()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
}

// TestReloadNothing: an app without Options.Reload returns an error.
func TestReloadNothing(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	if _, err := r.settings.Reload(t.Context()); !errors.Is(err, errNoReload) || !errors.Is(err, admin.ErrRefused) {
		t.Errorf("%v", err)
	}
}

// TestAdminTLS: on an address that is not loopback, with a token, the pages speak
// TLS and want the token, which a reload changes with its file.
func TestAdminTLS(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	cert, key, _ := newCertificate(t)
	renew(t, cert, key, 71)
	put := func(text string) {
		if err := os.WriteFile(token, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(secret)
	r := startReloading(t, Serve, func(c *config.Config) {
		c.TLSCert, c.TLSKey, c.AdminToken, c.Admin = cert, key, token, addr("0.0.0.0:0")
	})
	if !strings.HasPrefix(r.AdminURL(), "https://") {
		t.Fatalf("the pages are at %s", r.AdminURL())
	}
	url := strings.Replace(r.AdminURL(), "0.0.0.0", "127.0.0.1", 1)
	if status, _ := over(t, url+"/livez", ""); status != 200 {
		t.Errorf("a probe without a token: %d", status)
	}
	for _, c := range []struct {
		token string
		want  int
	}{{"", 401}, {otherSecret, 401}, {secret, 200}} {
		if status, serial := over(t, url+"/config", c.token); status != c.want || serial != 71 {
			t.Errorf("token %q: %d, certificate %d", c.token, status, serial)
		}
	}
	put(otherSecret)
	renew(t, cert, key, 72)
	if done := r.reload(t); len(done.Notes) != 1 || !strings.Contains(done.Notes[0], "good until") {
		t.Errorf("%+v", done)
	}
	if status, serial := over(t, url+"/config", otherSecret); status != 200 || serial != 72 {
		t.Errorf("after the reload: %d, certificate %d", status, serial)
	}
	if status, _ := over(t, url+"/config", secret); status != 401 {
		t.Errorf("the token before: %d", status)
	}
	if err := os.WriteFile(cert, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.settings.Reload(t.Context()); !errors.Is(err, admin.ErrRefused) {
		t.Errorf("a broken certificate: %v", err)
	}
	if _, serial := over(t, url+"/livez", ""); serial != 72 {
		t.Errorf("certificate %d after a broken one", serial)
	}
}

// over calls over a new connection and returns the name in the certificate.
func over(t *testing.T, url, token string) (status int, serial int64) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, res.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// TestAdminRefused: a public admin listener without a token is refused.
func TestAdminRefused(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("too short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*config.Config)
		want   string
	}{
		"public":        {func(c *config.Config) { c.Admin = addr("0.0.0.0:0") }, "no authentication"},
		"a short token": {func(c *config.Config) { c.AdminToken = token }, "16 to 4096"},
		"no token file": {func(c *config.Config) { c.AdminToken = "/nowhere" }, "/nowhere"},
	} {
		c2 := local()
		c.change(&c2)
		if err := Check(c2, Serve); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
