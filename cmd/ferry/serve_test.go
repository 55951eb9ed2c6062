package main

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
)

func TestServe(t *testing.T) {
	t.Parallel()
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
		t.Error("an unknown caller was admitted")
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

// TestJSONLog: with log_format json, each line of both streams is JSON, from the start through a reload
// and a failure to the end.
func TestJSONLog(t *testing.T) {
	t.Parallel()
	cert, key, ca := makeCluster(t)
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() }) // after the parallel parts
	fleet := []string{"--store", "redis://127.0.0.1:1", "--cluster-ca", ca, "--cluster-cert", cert, "--cluster-key", key}
	for _, c := range []struct {
		name   string
		args   []string
		starts bool
		says   string
	}{
		{"dev", append([]string{"dev", "--log-format", "json"}, freePorts...), true, "NO CREDENTIALS"},
		{"serve by its file", []string{"serve", "-c", settings(t, "log_format: json", "state_dir: "+t.TempDir())}, true, "made a relay id"},
		{"api without its store", append(append([]string{"api", "-c", settings(t, "log_format: json")}, freePorts[2:]...), fleet...), true,
			"the store does not answer"},
		{"a port that is in use", slices.Concat([]string{"dev", "--log-format=json"}, freePorts, []string{"--http", held.Addr().String()}), false,
			"http: " + held.Addr().String() + ": "},
		{"bad settings of the file", []string{"serve", "-c", settings(t, "log_format: json", "region: ''")}, false, "region: is empty"},
		{"no such command line", []string{"relay", "--log-format", "json", "--nonsense"}, false, "there is no option --nonsense"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := launch(t, nil, c.args...)
			var lines []string
			if c.starts {
				lines = p.untilReady()
				p.says(c.says)
				p.signal(syscall.SIGHUP)
				p.says("reload: done")
				p.signal(syscall.SIGTERM)
			}
			for line := range p.lines {
				lines = append(lines, line)
			}
			if code := p.exit(); (code == 0) != c.starts || !strings.Contains(p.stderr.String(), c.says) {
				t.Errorf("exit code %d: %s", code, p.stderr.String())
			}
			for _, line := range slices.AppendSeq(lines, strings.Lines(p.stderr.String())) {
				var record struct{ Time, Level, Msg string }
				if err := json.Unmarshal([]byte(line), &record); err != nil || record.Time == "" || record.Level == "" || record.Msg == "" {
					t.Errorf("no record: %q (%v)", line, err)
				}
			}
		})
	}
}

func makeCluster(t *testing.T) (cert, key, ca string) {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{{dir}, {dir, "api"}} {
		var out strings.Builder
		if code := run(t.Context(), append([]string{"ferry", "ctl", "cluster-ca"}, args...), nil, &out, &out); code != exitOK {
			t.Fatal(out.String())
		}
	}
	return filepath.Join(dir, "api.pem"), filepath.Join(dir, "api-key.pem"), filepath.Join(dir, "ca.pem")
}

func TestServeWithDamagedState(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	env := []string{"FERRY_CONFIG=" + settings(t), "FERRY_STATE_DIR=" + t.TempDir(), "FERRY_UDP=127.0.0.1:0,[::1]:0"}
	p := launch(t, env, "serve")
	if lines := p.untilReady(); len(lines) != 5 || !strings.HasPrefix(lines[1], "listening udp [::1]:") {
		t.Errorf("lines %q", lines)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

var freePorts = []string{"--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"}

func dev(t *testing.T, args ...string) (*ferryProcess, map[string]string) {
	t.Helper()
	p := launch(t, nil, append(append([]string{"dev"}, freePorts...), args...)...)
	lines := p.untilReady()
	return p, addresses(lines[len(lines)-1])
}

func TestStartUpLines(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "dev", "--udp", "127.0.0.1:0,[::1]:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	lines := p.untilReady()
	var kinds []string
	ready := lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "listening" || !strings.Contains(ready, f[2]) {
			t.Errorf("line %q, with %q", line, ready)
			continue
		}
		kinds = append(kinds, f[1])
		if _, port, err := net.SplitHostPort(f[2]); err != nil || port == "0" {
			t.Errorf("line %q: %v", line, err)
		}
	}
	if got := strings.Join(kinds, " "); got != "udp udp http admin" {
		t.Errorf("listeners %s", got)
	}
	for _, want := range []string{"NO CREDENTIALS", "NO LIMITS", "NOTHING IS KEPT"} {
		p.says("level=WARN msg=\"DEV: " + want)
	}
	if strings.Contains(p.stderr.String(), "OTHERS CAN REACH") {
		t.Error("it warns of an address on loopback")
	}
}

func TestDevOnEveryAddressWarns(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "dev", "--udp", "0.0.0.0:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")
	p.untilReady()
	p.says(`"level":"WARN","msg":"DEV: OTHERS CAN REACH THIS RELAY`)
}

func TestInterruptAndTerminate(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p, _ := dev(t)
		p.signal(s)
		if code := p.exit(); code != 0 {
			t.Errorf("%v: exit code %d: %s", s, code, p.stderr.String())
		}
	}
}

// TestSecondSignal: a call that is under way holds the end up; a second signal
// does not wait for it.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	p, at := dev(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(at["http"], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/allocate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// The server asks for the body when it has begun with the call.
	if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 100"))); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	p.says("stopping")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "another signal") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	_, at := dev(t)
	p := launch(t, nil, "dev", "--udp", at["udp"], "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "address already in use") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func settings(t *testing.T, lines ...string) string {
	t.Helper()
	text := `udp: 127.0.0.1:0
http: 127.0.0.1:0
admin: 127.0.0.1:0
tokens:
  - secret: a-secret-of-the-tests
    project: game
    environment: test
    kind: server
` + strings.Join(lines, "\n") + "\n"
	path := filepath.Join(t.TempDir(), "ferry.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	good := settings(t)
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("store: redis://127.0.0.1:6379\nidle_timeout: 5\nadvertize: 203.0.113.7\nhttp: 127.0.0.1:0\n"+
		"tokens:\n  - secret: short\n    project: p\n    environment: e\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           string
		env            string
		code           int
		stdout, stderr string
	}{
		{"", "", 0, "ferry demo", ""},
		{"--help", "", 0, "COMMANDS", ""},
		{"--version", "", 0, "ferry version", ""},
		{"version", "", 0, "commit ", ""},
		{"serve --help", "", 0, "ferry serve --config", ""},
		{"dev --help", "", 0, "--log-level", ""},
		{"demo --help", "", 0, "ferry demo --players 20", ""},
		{"check --help", "", 0, "ferry check --config", ""},
		{"sing", "", 2, "", `unknown command "sing"`},
		{"--nonsense", "", 2, "", "nonsense"},
		{"serve --nonsense", "", 2, "", "See: ferry serve --help"},
		{"serve extra", "", 2, "", `unexpected argument "extra"`},
		{"version extra", "", 2, "", "unexpected argument"},
		{"serve --workers many", "", 2, "", "many"},
		{"serve --workers 257", "", 2, "", "--workers: 257 is not within"},
		{"serve", "", 2, "", "tokens:\n      - secret_file:"},
		{"serve", "", 2, "", "plain HTTP is refused"},
		{"serve -c " + good + " --http 0.0.0.0:0", "", 2, "", "plain HTTP is refused"},
		{"serve -c " + good + " --admin 0.0.0.0:0", "", 2, "", "no authentication"},
		{"serve -c " + good + " --advertise 2001:db8::1", "", 2, "", "no address of the family"},
		{"serve -c /nowhere", "", 2, "", "/nowhere"},
		{"serve -c " + good, "FERRY_WORKRES=1", 2, "", "FERRY_WORKRES"},
		{"dev --tls-cert x", "", 2, "", "one without the other"},
		{"demo --players 0", "", 2, "", "1 to 1000"},
		{"demo --seconds 0", "", 2, "", "more than 0"},
		{"demo --players x", "", 2, "", "See: ferry demo --help"},
		{"check", "", 1, "state_dir: /var/lib/ferry", "no token is configured"},
		{"check -c " + good, "", 0, "# serve would start", "advice: tokens of kind server"},
		{"check -c " + good, "FERRY_REGION=eu", 0, "# FERRY_REGION", "advice: tokens of kind server"},
		{"check --workers 3", "FERRY_CONFIG=" + good, 0, "# --workers", "advice: tokens of kind server"},
		{"check -c " + good + " --http 0.0.0.0:0", "", 1, "trusted_proxies: []",
			"set trusted_proxies to the addresses from which a reverse proxy connects, such as [127.0.0.1]"},
		{"check -c " + good + " --workers 257", "", 1, "", "--workers: 257"},
		{"check -c " + good + " --trusted-proxies 127.0.0.1", "", 0, "# serve would start", "set advertise_name"},
		{"check -c " + good + " --allow-origins game.example.org", "", 1, "allow_origins: [game.example.org]", "game.example.org"},
		{"serve -c " + good + " --advertise-name 203.0.113.7", "", 2, "", "is not a DNS name"},
		{"check -c " + wrong, "", 1, "", "4 errors: ferry api would not start with these settings (tokens is set)"},
		{"check -c " + wrong, "", 1, "", "error: " + wrong + ":2: idle_timeout: \"5\" is not a duration"},
		{"check -c " + wrong, "", 1, "", "error: " + wrong + ":3: unknown key \"advertize\"; did you mean advertise?"},
		{"check -c " + wrong, "", 1, "", "error: cluster_ca, cluster_cert, cluster_key: "},
		{"check -c " + wrong, "", 1, "", "tokens[0]: its secret"},
		{"check --machine -c " + wrong, "", 1, "problem  settings: ", "there are problems"},
		{"serve --nonsense", "FERRY_LOG_FORMAT=json", 2, "", `"level":"ERROR","msg":"ferry ends","error":"there is no option --nonsense"`},
		{"serve --log-format json --workers 257", "", 2, "", `"msg":"ferry ends","error":"--workers: 257 is not within`},
		{"ping --help", "", 0, "ferry ping http://127.0.0.1:7777", ""},
		{"ping", "", 2, "", "give the URL of an API"},
		{"probe", "", 2, "", `unknown command "probe"`},
		{"canary", "", 2, "", `unknown command "canary"`},
		{"doctor", "", 2, "", `unknown command "doctor"`},
		{"check --machine", "", 1, " processors: ", "there are problems"},
		{"check --machine --workers 257", "", 1, "--workers: 257", "there are problems"},
		{"check --running --admin 127.0.0.1:1 -c " + good, "", 1, "nothing listens at http://127.0.0.1:1", "there are problems"},
		{"check --json -c " + good, "", 2, "", "--json is for --machine, --running, --token and --relay"},
		{"check --nonsense", "", 2, "", "nonsense"},
	} {
		var stdout, stderr strings.Builder
		args := append([]string{"ferry"}, strings.Fields(c.args)...)
		code := run(t.Context(), args, []string{c.env}, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s ferry %s: code %d, want %d\nstdout (want %q): %s\nstderr (want %q): %s",
				c.env, c.args, code, c.code, c.stdout, stdout.String(), c.stderr, stderr.String())
		}
		if c.stderr == "" && stderr.Len() > 0 {
			t.Errorf("ferry %s: stderr %s", c.args, stderr.String())
		}
		if all := stdout.String() + stderr.String(); strings.Contains(all, "a-secret-of-the-tests") {
			t.Errorf("ferry %s shows the secret:\n%s", c.args, all)
		}
	}
}

// TestHelpNamesEverything: every command has examples, every flag its variable.
func TestHelpNamesEverything(t *testing.T) {
	t.Parallel()
	root := streams{}.root()
	for _, cmd := range root.Commands {
		if !strings.Contains(cmd.Description, "Example") || !strings.Contains(cmd.Description, "ferry "+cmd.Name) || cmd.Usage == "" {
			t.Errorf("%s has no usage or no example", cmd.Name)
		}
	}
	var out strings.Builder
	run(t.Context(), []string{"ferry", "serve", "--help-all"}, nil, &out, &out)
	_, options, _ := strings.Cut(out.String(), "OPTIONS")
	entries := strings.Split(options, "\n   --")[1:]
	if len(entries) < 60 {
		t.Errorf("%d options", len(entries))
	}
	for _, entry := range entries {
		flag, _, _ := strings.Cut(entry, " ")
		if flag = strings.TrimSuffix(flag, ","); flag == "help" || flag == "help-all" {
			continue
		}
		variable := "$FERRY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		if !strings.Contains(entry, variable+")") {
			t.Errorf("%s is missing in %q", variable, entry)
		}
	}
}

// TestBashCompletion: the script for bash completes commands and flags, and
// never runs the command that it completes.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	// The package bash-completion, which has _comp_initialize, may be missing.
	const script = `source <(ferry completion bash)
_comp_initialize() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
__ferry_bash_autocomplete
echo "${COMPREPLY[*]}"`
	for _, test := range []struct {
		line string
		want string
	}{
		{"ferry se", "serve"},
		{"ferry ctl dra", "drain"},
		{"ferry ctl log", "log-level"},
		{"ferry serve --drain-t", "--drain-timeout"},
		{"ferry serve --config x --max-http", "--max-http-connections"},
		{"ferry ctl close 00000000000000000000000000000000 x", ""},
	} {
		cmd := exec.Command(bash, append([]string{"-c", script, "bash"}, strings.Fields(test.line)...)...)
		cmd.Env = []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")}
		got, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(got)) != test.want {
			t.Errorf("%s: %q, %v; want %q", test.line, got, err, test.want)
		}
	}
}
