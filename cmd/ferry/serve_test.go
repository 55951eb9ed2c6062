package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
)

func TestServe(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"serve", "-c", settings(t, "state_dir: "+state), "--log-format", "json"}
	made := `"msg":"made a relay id and a master key","dir":"` + state

	first := launch(t, nil, args...)
	lines := first.untilReady()
	at := addresses(lines[len(lines)-1])
	first.says(made)
	client := api.Client{BaseURL: at["http"], Token: "a-secret-of-the-tests"}
	if _, err := client.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4}); err != nil {
		t.Error(err)
	}
	client.Token = "another-secret-of-theirs"
	if _, err := client.Regions(t.Context()); err == nil {
		t.Error("a stranger was let in")
	}

	second := launch(t, nil, args...)
	if code := second.exit(); code != exitFailed || !strings.Contains(second.stderr.String(), "is in use by another process") {
		t.Errorf("a second process on one state: code %d, %s", code, second.stderr.String())
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, first.stderr.String())
	}

	third := launch(t, nil, args...)
	third.untilReady()
	third.signal(syscall.SIGTERM)
	if code := third.exit(); code != 0 || strings.Contains(third.stderr.String(), made) {
		t.Errorf("after a restart: code %d, %s", code, third.stderr.String())
	}
	for log := range strings.Lines(third.stderr.String()) {
		if !json.Valid([]byte(log)) {
			t.Errorf("no JSON: %s", log)
		}
	}
	if strings.Contains(first.stderr.String(), "a-secret-of-the-tests") {
		t.Error("the secret is in the log")
	}
}

func TestServeWithDamagedState(t *testing.T) {
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "identity"), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, nil, "serve", "-c", settings(t), "--state-dir", state)
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "is damaged") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestServeFromEnvironment(t *testing.T) {
	env := []string{"FERRY_CONFIG=" + settings(t), "FERRY_STATE_DIR=" + t.TempDir(), "FERRY_UDP=127.0.0.1:0,[::1]:0"}
	p := launch(t, env, "serve")
	if lines := p.untilReady(); len(lines) != 5 || !strings.HasPrefix(lines[1], "listening udp [::1]:") {
		t.Errorf("lines %q", lines)
	}
}

func TestDemo(t *testing.T) {
	p := launch(t, nil, "demo", "--json", "--players", "2", "--seconds", "0.3")
	var out strings.Builder
	for line := range p.lines {
		out.WriteString(line + "\n")
	}
	var report struct {
		OK      bool              `json:"ok"`
		Players []json.RawMessage `json:"players"`
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil || !report.OK || len(report.Players) != 2 {
		t.Errorf("%v\n%s", err, out.String())
	}
	if p.stderr.String() != "" {
		t.Errorf("stderr: %s", p.stderr.String())
	}
}

func TestDemoInterrupted(t *testing.T) {
	p := launch(t, nil, "demo", "--seconds", "600")
	for line := range p.lines {
		if strings.Contains(line, "have joined") {
			break
		}
	}
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}
