package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// settings writes a file that serve takes, plus lines, and returns its path.
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

// TestExitCodes goes through command lines that end by themselves.
func TestExitCodes(t *testing.T) {
	good := settings(t)
	public := settings(t, "behind_proxy: false")
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
		{"dev --help", "", 0, "--idle-timeout", ""},
		{"demo --help", "", 0, "ferry demo --players 20", ""},
		{"check --help", "", 0, "ferry check --config", ""},
		{"sing", "", 2, "", `no command is named "sing"`},
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
		{"check -c " + good, "", 0, "# serve would start", ""},
		{"check -c " + good, "FERRY_REGION=eu", 0, "# FERRY_REGION", ""},
		{"check --workers 3", "FERRY_CONFIG=" + good, 0, "# --workers", ""},
		{"check -c " + public + " --http 0.0.0.0:0", "", 1, "behind_proxy: false", "plain HTTP is refused"},
		{"check -c " + good + " --workers 257", "", 1, "", "--workers: 257"},
		{"check -c " + good + " --behind-proxy --trusted-proxies 127.0.0.1", "", 0, "# serve would start", "set advertise_name"},
		{"check -c " + good + " --allow-origins game.example.org", "", 1, "allow_origins: [game.example.org]", "game.example.org"},
		{"serve -c " + good + " --advertise-name 203.0.113.7", "", 2, "", "is not a DNS name"},
		{"ping --help", "", 0, "ferry ping --api", ""},
		{"ping", "", 2, "", "either --api or relays"},
		{"ping --api http://127.0.0.1:1 127.0.0.1:1", "", 2, "", "either --api or relays"},
		{"ping --token a 127.0.0.1:1", "", 2, "", "are for --api"},
		{"ping 127.0.0.1", "", 2, "", "is not HOST:PORT"},
		{"ping --probes 101 127.0.0.1:1", "", 2, "", "1 to 100"},
		{"ping --patience 2m 127.0.0.1:1", "", 2, "", "at most 1m"},
		{"ping --api http://127.0.0.1:1", "", 1, "", "regions:"},
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
	root := streams{}.root()
	for _, cmd := range root.Commands {
		if !strings.Contains(cmd.Description, "Example") || !strings.Contains(cmd.Description, "ferry "+cmd.Name) || cmd.Usage == "" {
			t.Errorf("%s has no usage or no example", cmd.Name)
		}
	}
	var out strings.Builder
	run(t.Context(), []string{"ferry", "serve", "--help"}, nil, &out, &out)
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSpace(line)
		flag, _, _ := strings.Cut(strings.TrimPrefix(line, "--"), " ")
		if !strings.HasPrefix(line, "--") || flag == "help," {
			continue
		}
		variable := "$FERRY_" + strings.ToUpper(strings.ReplaceAll(strings.TrimSuffix(flag, ","), "-", "_"))
		if !strings.Contains(line, variable) {
			t.Errorf("%s is missing in %q", variable, line)
		}
	}
}

// TestBashCompletion: the script for bash completes commands and flags, and
// never runs the command that it completes.
func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	// _comp_initialize is of the package bash-completion, which may be missing.
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
		{"ferry serve --drain-th", "--drain-threshold"},
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
