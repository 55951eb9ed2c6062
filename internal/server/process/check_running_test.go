package process

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func secretFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestCheckRunning judges a process with settings that are those of the check, or differ in one thing.
func TestCheckRunning(t *testing.T) {
	t.Parallel()
	cert, key, _ := newCertificate(t)
	otherCert, otherKey, _ := newCertificate(t)
	plain := startReloading(t, Serve, func(c *config.Config) { c.Admin = addr("127.0.0.1:" + testkit.FreePort(t)) })
	overTLS := startReloading(t, Serve, func(c *config.Config) {
		c.Admin, c.TLSCert, c.TLSKey, c.AdminToken = addr("0.0.0.0:"+testkit.FreePort(t)), cert, key, secretFile(t, secret)
	})
	insecure, secured := plain.file, overTLS.file
	for _, c := range []struct {
		name                 string
		settings             config.Config
		change               func(*config.Config)
		subject, state, text string
	}{
		{"plain", insecure, nil, "process", stateOK, "is ready at http://127.0.0.1:"},
		{"plain, its files", insecure, nil, "open files", stateOK, "the process has "},
		{"plain, from outside", insecure, nil, "from outside", stateAdvice, "no datagram has come over UDP since"},
		{"another setting", insecure, func(c *config.Config) { c.IdleTimeout, c.LogLevel = 20*time.Second, "warn" },
			"settings in force", stateAdvice, "idle_timeout is 10s, here 20s"},
		{"another setting that a reload changes", insecure, func(c *config.Config) { c.LogLevel = "warn" },
			"settings in force", stateAdvice, "log_level is info, here warn"},
		{"one token more", insecure, func(c *config.Config) { c.Tokens = append(slices.Clone(c.Tokens), c.Tokens[0]) },
			"settings in force", stateAdvice, "tokens[1].project is none, here game"},
		{"stopped", insecure, func(c *config.Config) { c.Admin = addr("127.0.0.1:1") }, "process", stateProblem,
			"nothing listens at http://127.0.0.1:1"},
		{"plain, and TLS by the settings", insecure, func(c *config.Config) {
			c.Admin, c.TLSCert, c.TLSKey, c.AdminToken = addr(fmt.Sprintf("0.0.0.0:%d", c.Admin.Port())), cert, key, secured.AdminToken
		}, "process", stateProblem, "speaks plain HTTP"},
		{"no token file", insecure, func(c *config.Config) { c.AdminToken = "/nowhere" }, "process", stateSkipped, "/nowhere"},

		{"TLS", secured, nil, "process", stateOK, "is ready at https://127.0.0.1:"},
		{"TLS, with the token", secured, nil, "settings in force", stateOK, "runs with these"},
		{"TLS, another token", secured, func(c *config.Config) { c.AdminToken = secretFile(t, otherSecret) },
			"admin pages", stateProblem, "does not accept the token"},
		{"another certificate", secured, func(c *config.Config) { c.TLSCert, c.TLSKey = otherCert, otherKey },
			"process", stateProblem, "is not that of tls_cert"},
		{"a certificate of ACME", secured, func(c *config.Config) {
			c.TLSCert, c.TLSKey, c.ACME, c.AdvertiseName = "", "", true, config.Name{Host: "relay.example.org"}
		}, "process", stateProblem, "certificate"},
		{"TLS, and plain by the settings", secured, func(c *config.Config) { c.Admin = addr(fmt.Sprintf("127.0.0.1:%d", c.Admin.Port())) },
			"process", stateProblem, "speaks TLS"},
	} {
		k := Checker{Config: c.settings, Mode: Serve}
		if c.change != nil {
			c.change(&k.Config)
		}
		t.Run(c.name, func(t *testing.T) { expectFinding(t, k.Check(t.Context(), false, true), c.subject, c.state, c.text) })
	}
}

// TestCheckRunningCounters judges a process by what its pages say.
func TestCheckRunningCounters(t *testing.T) {
	t.Parallel()
	page := map[string]string{"/readyz": "ok", "/config": "{}"}
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret || page[r.URL.Path] == "" {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, page[r.URL.Path])
	}))
	defer process.Close()
	c := local()
	c.Admin, c.AdminToken = addr(process.Listener.Addr().String()), secretFile(t, secret)
	c.MaxHTTPConnections, c.MaxWebSockets = 500, 300
	expect := func(stats, metrics, subject, state, text string) {
		t.Helper()
		page["/stats"], page["/metrics"] = stats, metrics+"\n"
		k := Checker{Config: c, Mode: Serve}
		expectFinding(t, k.Check(t.Context(), false, true), subject, state, text)
	}
	stats := `{"state_complete":false,"drops":{"forbidden":7}}`
	stored := `{"state_complete":true,"workers":[1,2],"drops":{"private":4711,"unvalidated":815}}`
	expect(stats, "", "state file", stateProblem, "cannot write it")
	expect(stored, "", "state file", stateOK, "stores what")
	expect(stored, "", "from outside", stateSkipped, "another network")
	expect(`{"since":"2026-11-28T09:00:00Z","workers":[2,1],"outcomes":{"check":3}}`, "", "from outside", stateAdvice,
		"no datagram has come over UDP since 2026-11-28T09:00:00Z")
	expect(stored, "", "private sources", stateAdvice, "4711 datagrams")
	expect(stored, "", "limited paths", stateAdvice, "815 datagrams")
	expect(stored, "", "open files", stateSkipped, "does not tell")
	expect(stored, "process_max_fds 1024\nprocess_open_fds 20\n", "open files", stateOK, "20 of at most 1024")
	expect(stored, "process_open_fds 20\nprocess_max_fds 901\n", "open files", stateAdvice, "can be 902")
	expect(stored, "process_open_fds 820\nprocess_max_fds 1024\n", "open files", stateProblem, "820 of at most 1024")
	delete(page, "/readyz")
	expect(stored, "", "process", stateProblem, "is not ready: draining")
	page["/config"] = "<html>"
	var in operator.Settings
	a, err := newAdminClient(&c, Serve)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if err := a.decode(t.Context(), "/config", &in); err == nil || !strings.Contains(err.Error(), "is no page of ferry") {
		t.Errorf("a page of another program: %v", err)
	}
}
