package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
)

const devKey = "a-development-key-of-the-tests-0123456789"

func keyFile(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dev.key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func minted(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	if code := run(t.Context(), append([]string{"ferry", "token"}, args...), nil, &stdout, &stderr); code != exitOK || stderr.Len() > 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	return strings.TrimSuffix(stdout.String(), "\n")
}

// TestTokenOpensServe: serve with an issuer accepts tokens of ferry token, each
// for its own player, and no others.
func TestTokenOpensServe(t *testing.T) {
	t.Parallel()
	key := keyFile(t, devKey)
	path := filepath.Join(t.TempDir(), "ferry.yaml")
	text := "udp: 127.0.0.1:0\nhttp: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlog_level: debug\n" +
		"issuers:\n  - preset: development\n    hs256_key_file: " + key + "\n    environment: test\n" +
		"quotas:\n  - project: full\n    allocations: 2\n  - project: off\n    inactive: true\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, nil, "serve", "-c", path, "--state-dir", filepath.Join(t.TempDir(), "state"))
	lines := p.untilReady()
	url := addresses(lines[len(lines)-1])["http"]
	token := func(more ...string) string {
		return minted(t, append([]string{"--key-file", key, "--project", "game", "--environment", "test", "--player", "anna"}, more...)...)
	}
	allocate := func(token string) (int, string) {
		client := api.Client{BaseURL: url, Token: token}
		a, err := client.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
		var problem *api.Problem
		if errors.As(err, &problem) {
			return problem.Code, ""
		}
		if err != nil {
			t.Fatal(err)
		}
		return http.StatusCreated, a.AllocationID
	}
	_, id := allocate(token())
	if id == "" {
		t.Fatal("a minted token was refused")
	}
	for name, c := range map[string]struct {
		token string
		finds bool
	}{
		"herself": {token("--for", "1h"), true}, "somebody else": {token("--player", "bert"), false},
		"a backend": {token("--player", "bot", "--kind", "server"), true}, "of another game": {token("--project", "game2"), false},
	} {
		client := api.Client{BaseURL: url, Token: c.token}
		if _, err := client.JoinCode(t.Context(), id); (err == nil) != c.finds {
			t.Errorf("join code for %s: %v", name, err)
		}
	}
	refusals(t, key, token, allocate)
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log := p.stderr.String()
	if !strings.Contains(log, "every project") || !strings.Contains(log, "unknown issuer") {
		t.Errorf("the log warns of no development key, or does not say why a token was refused:\n%s", log)
	}
	if strings.Contains(log, devKey) || strings.Contains(log, token()[:20]) {
		t.Errorf("a secret is in the log:\n%s", log)
	}
}

func refusals(t *testing.T, key string, token func(more ...string) string, allocate func(token string) (int, string)) {
	t.Helper()
	for name, c := range map[string]struct {
		token string
		code  int
	}{
		"another key": {minted(t, "--key-file", keyFile(t, devKey+"x"), "--project", "game", "--environment", "test", "--player", "anna"), 15401},
		"audience":    {token("--audience", "elsewhere"), 15401},
		"issuer":      {token("--issuer", "somebody"), 15401},
		"environment": {token("--environment", "live"), 15401},
		"no token":    {"", 15401},
		"1 of 2":      {token("--project", "full"), 201},
		"inactive":    {token("--project", "off"), 15006},
	} {
		if code, _ := allocate(c.token); code != c.code {
			t.Errorf("%s: %d, want %d", name, code, c.code)
		}
	}
	if code, _ := allocate(token("--project", "full", "--player", "bert")); code != 201 {
		t.Errorf("the last of a quota: %d", code)
	}
	if code, _ := allocate(token("--project", "full", "--player", "carl")); code != 15429 {
		t.Errorf("beyond a quota: %d", code)
	}
}

func TestTokenUsage(t *testing.T) {
	t.Parallel()
	key := keyFile(t, devKey)
	good := "token --key-file " + key + " --project p --environment e --player a"
	for _, c := range []struct{ args, says string }{
		{"token --project p --environment e --player a", "--key-file is required"},
		{"token --key-file " + key + " --environment e --player a", "--project is required"},
		{good + " --kind king", "neither player nor server"},
		{good + " --for 0s", "valid for 0s"},
		{good + " --for -1h", "valid for -1h"},
		{"token --key-file /nowhere --project p --environment e --player a", "/nowhere"},
		{"token --key-file " + keyFile(t, "short") + " --project p --environment e --player a", "at least 32 bytes"},
		{"token --key-file " + keyFile(t, "-----BEGIN PUBLIC KEY----- "+devKey) + " --project p --environment e --player a", "not a file in PEM"},
		{good + strings.Repeat("x", 300), "are required"},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{"ferry"}, strings.Fields(c.args)...), nil, &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), c.says) || stdout.Len() > 0 {
			t.Errorf("%s: code %d, %s", c.args, code, stderr.String())
		}
		if strings.Contains(stderr.String(), devKey) {
			t.Errorf("%s shows the key", c.args)
		}
	}
}

// TestCheckShowsIssuers: check prints the trusted issuers without secrets, and reports
// the errors of serve.
func TestCheckShowsIssuers(t *testing.T) {
	t.Parallel()
	key := keyFile(t, devKey)
	check := func(text string) (int, string) {
		var out strings.Builder
		code := run(t.Context(), []string{"ferry", "check", "-c", settings(t, text)}, nil, &out, &out)
		if strings.Contains(out.String(), devKey) {
			t.Errorf("the key is in\n%s", out.String())
		}
		return code, out.String()
	}
	code, out := check("issuers:\n  - preset: unity\n    project: 7f0a\n  - preset: development\n    hs256_key_file: " + key +
		"\n  - issuer: https://id.example.org\n    audience: [relay, other]\n    jwks_url: https://id.example.org/jwks\n    project_claim: p\n    environment: live\n")
	for _, want := range []string{"preset: unity", "hs256_key_file: ", "audience: [relay, other]",
		"jwks_url: \"https://id.example.org/jwks\"", "# serve would start", "warning: issuers[1]"} {
		if code != exitOK || !strings.Contains(strings.ReplaceAll(out, "jwks_url: https://id.example.org/jwks",
			"jwks_url: \"https://id.example.org/jwks\""), want) {
			t.Errorf("code %d, no %q in\n%s", code, want, out)
		}
	}
	for text, want := range map[string]string{
		"issuers:\n  - preset: unity\n": "project is required",
		"issuers:\n  - preset: development\n    hs256_key_file: " + keyFile(t, "short") + "\n": "at least 32 bytes",
		"issuers:\n  - preset: development\n    hs256_key_file: /nowhere\n":                    "/nowhere",
		"issuers:\n  - preset: facebook\n": "is not " +
			"one of unity, development",
		"issuers:\n  - preset: development\n    hs256_key_file: " + key + "\n    jwks_url: https://a.example/\n": "not both",
		"admission_url: http://203.0.113.7/\n":      "use https",
		"webhook_url: https://hooks.example.org/\n": "webhook_secret_file is required",
		"quotas:\n  - allocations: 1\n":             "needs project",
		"quotas:\n  - project: a\n  - project: a\n": "has one already",
	} {
		if code, out := check(text); code != exitFailed || !strings.Contains(out, want) {
			t.Errorf("%s: code %d, want %q in %s", text, code, want, out)
		}
	}
}

// TestCheckToken: check says of a token whether serve would accept it, and all that is wrong, without printing it.
func TestCheckToken(t *testing.T) {
	t.Parallel()
	const static = "a-secret-of-the-tests" // of settings
	key := keyFile(t, devKey)
	with := settings(t, "issuers:\n  - preset: development\n    hs256_key_file: "+key+"\n    project: game\n"+
		"  - preset: unity\n    project: 7f0a")
	mint := func(project string, more ...string) string {
		return minted(t, append([]string{"--key-file", key, "--project", project, "--environment", "e", "--player", "anna"}, more...)...)
	}
	other := keyFile(t, strings.Repeat("k", 40))
	forged := minted(t, "--key-file", other, "--project", "other", "--environment", "e", "--player", "anna")
	for name, c := range map[string]struct {
		settings, token string
		code            int
		says            []string
	}{
		"static":     {with, static, exitOK, []string{`ok       token: it is tokens[0]: project "game", environment "test"`}},
		"pasted":     {with, "  Bearer " + static + "\r\n", exitOK, []string{"tokens[0]"}},
		"minted":     {with, mint("game"), exitOK, []string{"ok       signature", `project "game", environment "e", player "anna"`}},
		"no issuers": {settings(t), mint("game"), exitFailed, []string{"none of the 1 tokens", "-> add it to tokens"}},
		"nonsense":   {with, "hello", exitFailed, []string{"problem  form: not a usable token; 5 bytes", "-> copy all of it"}},
		"two wrong": {with, forged, exitFailed, []string{"problem  signature: wrong signature", "problem  audience and claims:",
			"claim project does not match", "ok       time: "}},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), []string{"ferry", "check", "-c", c.settings, "--token", keyFile(t, c.token)}, nil, &stdout, &stderr)
		out := stdout.String() + stderr.String()
		for _, want := range c.says {
			if code != c.code || !strings.Contains(out, want) {
				t.Errorf("%s: code %d, no %q in\n%s", name, code, want, out)
			}
		}
		for _, part := range strings.Split(strings.TrimSpace(c.token), ".") {
			if name != "nonsense" && strings.Contains(out, part) {
				t.Errorf("%s: the token is in\n%s", name, out)
			}
		}
	}
	twice := []string{"ferry", "check", "-c", settings(t, "tokens: []"), "--token", key}
	if code := run(t.Context(), twice, nil, io.Discard, io.Discard); code != exitFailed {
		t.Errorf("with settings that cannot be loaded: code %d", code)
	}
	for _, args := range [][]string{{"--token", mint("game")}, {"--token", key, "--machine"}} {
		var out strings.Builder
		code := run(t.Context(), append([]string{"ferry", "check", "-c", with}, args...), nil, &out, &out)
		if code != exitUsage || strings.Contains(out.String(), args[1]) {
			t.Errorf("%q: code %d\n%s", args, code, out.String())
		}
	}
}
