package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type settings struct {
	flags, env map[string]bool
}

var (
	helpFlag = regexp.MustCompile(`(?m)^ {3}--([a-z0-9-]+)`)
	helpEnv  = regexp.MustCompile(`\$(FERRY_[A-Z0-9_]+)`)
)

// promised are the flags of the fleet's roles, for a binary without these roles.
var promised = []string{"store", "cluster", "cluster-ca", "cluster-cert", "cluster-key"}

func known(t *testing.T, command ...string) settings {
	t.Helper()
	s := settings{make(map[string]bool), make(map[string]bool)}
	add := func(help string) {
		for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
			s.flags[m[1]] = true
		}
		for _, m := range helpEnv.FindAllStringSubmatch(help, -1) {
			s.env[m[1]] = true
		}
	}
	help, code := run(t, append(slices.Clone(command), "--help-all")...) // of a command whose options are settings
	if code != 0 {
		help, code = run(t, append(slices.Clone(command), "--help")...)
	}
	if code == 0 && strings.Contains(help, "OPTIONS") && strings.Contains(help, "ferry "+command[0]) {
		add(help)
		return s
	}
	if command[0] != "relay" && command[0] != "api" {
		t.Errorf("the binary has no command %q", command)
		return s
	}
	t.Logf("the binary has no command %q yet: its flags are taken to be those of serve, and %q", command[0], promised)
	help, _ = run(t, "serve", "--help-all")
	add(help)
	for _, name := range promised {
		s.flags[name] = true
		s.env["FERRY_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = true
	}
	return s
}

type commandLine struct {
	where string
	words []string // without the binary
}

func (c commandLine) check(t *testing.T) {
	t.Helper()
	n := 1
	if len(c.words) > 1 && c.words[0] == "ctl" && !strings.HasPrefix(c.words[1], "-") {
		n = 2
	}
	if len(c.words) < n {
		t.Errorf("%s: no command", c.where)
		return
	}
	s := known(t, c.words[:n]...)
	if len(s.flags) == 0 {
		t.Errorf("%s: nothing is known of %q", c.where, c.words[:n])
	}
	for _, w := range c.words[n:] {
		name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
		if strings.HasPrefix(w, "--") && !s.flags[name] {
			t.Errorf("%s: ferry %s has no flag --%s", c.where, strings.Join(c.words[:n], " "), name)
		}
	}
}

// flag returns the value of a flag, or "" if it is not set.
func (c commandLine) flag(name string) string {
	for i, w := range c.words {
		if value, ok := strings.CutPrefix(w, "--"+name+"="); ok {
			return value
		}
		if w == "--"+name && i+1 < len(c.words) {
			return c.words[i+1]
		}
	}
	return ""
}

func commandLines(t *testing.T) (all []commandLine) {
	t.Helper()
	for _, name := range units(t) {
		for _, l := range parseUnit(t, name) {
			program, rest, _ := strings.Cut(l.value, " ")
			if program == "/usr/local/bin/ferry" {
				all = append(all, commandLine{name + ": " + l.key, strings.Fields(rest)})
			}
		}
	}
	for _, in := range containerfile(t) {
		if in.word == "CMD" || in.word == "HEALTHCHECK" {
			all = append(all, commandLine{"Containerfile: " + in.word, in.command(t)})
		}
	}
	for name, s := range readCompose(t).Services {
		if s.Image == "ferry" {
			all = append(all, commandLine{"compose.yaml: " + name, s.Command})
		}
	}
	return append(all, typed(t)...)
}

var shellLine = regexp.MustCompile(`(?m)^\$ (?:sudo )?(?:kubectl (?:-n \S+ )?exec \S+ -- )?/?ferry (.*)$`)

func typed(t *testing.T) (all []commandLine) {
	for _, m := range shellLine.FindAllStringSubmatch(read(t, "README.md"), -1) {
		line, _, _ := strings.Cut(m[1], "#")
		line, _, _ = strings.Cut(line, ">")
		all = append(all, commandLine{"README.md: " + m[0], strings.Fields(line)})
	}
	return all
}

func TestFlags(t *testing.T) {
	t.Parallel()
	all := commandLines(t)
	if len(all) < 12 {
		t.Fatalf("only %d calls of the binary were found", len(all))
	}
	for _, c := range all {
		c.check(t)
	}
}

var variable = regexp.MustCompile(`\bFERRY_[A-Z0-9_]*[A-Z0-9]\b`)

func TestVariables(t *testing.T) {
	t.Parallel()
	vars := known(t, "relay").env
	for name := range known(t, "api").env {
		vars[name] = true
	}
	vars["FERRY_CONFIG"] = true
	found := 0
	err := filepath.WalkDir(".", func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, ".go") {
			return err
		}
		for _, v := range variable.FindAllString(read(t, name), -1) {
			if found++; !vars[v] {
				t.Errorf("%s: the binary has no variable %s", name, v)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("only %d variables were found", found)
	}
}

var structKeys = []string{"tokens", "issuers", "quotas"}

func checkKeys(t *testing.T, where, role, text string) {
	t.Helper()
	var file map[string]any
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	if len(file) == 0 {
		t.Errorf("%s: no keys", where)
	}
	s := known(t, role)
	for key := range file {
		if !s.flags[strings.ReplaceAll(key, "_", "-")] && !slices.Contains(structKeys, key) {
			t.Errorf("%s: ferry %s has no key %s", where, role, key)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	checkKeys(t, "ferry.yaml", "serve", read(t, "systemd/ferry.yaml"))
	checkKeys(t, "relay.yaml", "relay", read(t, "systemd/relay.yaml"))
	checkKeys(t, "api.yaml", "api", read(t, "systemd/api.yaml"))
}

// TestCheck checks that ferry check accepts the configuration files of all
// roles, with local files in place of those in /etc/ferry, and rejects a
// misspelt key.
func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := testkit.SelfSigned(t).WriteFiles(t, dir)
	token, fleet := filepath.Join(dir, "token"), filepath.Join(dir, "fleet")
	if err := os.WriteFile(token, []byte("a-token-of-the-tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{fleet}, {fleet, "api"}, {fleet, "relay", "--state-dir", filepath.Join(dir, "state")}} {
		if out, code := run(t, append([]string{"ctl", "cluster-ca"}, args...)...); code != 0 {
			t.Fatalf("%q: exit code %d:\n%s", args, code, out)
		}
	}
	here := strings.NewReplacer("/etc/ferry/cert.pem", cert, "/etc/ferry/key.pem", key, "/etc/ferry/token", token, "/etc/ferry/cluster", fleet)
	store := regexp.MustCompile(`(?m)^FERRY_STORE=(.*)$`).FindStringSubmatch(read(t, "systemd/store.env"))
	if store == nil {
		t.Fatal("store.env does not say where the store is")
	}
	for role, name := range map[string]string{"serve": "ferry", "relay": "relay", "api": "api"} {
		text, file := here.Replace(read(t, "systemd/"+name+".yaml")), filepath.Join(dir, name+".yaml")
		args := []string{"check", "--role", role, "--config", file}
		if role != "serve" {
			args = append(args, "--store", store[1])
		}
		for _, more := range []string{"", "max_conections: 3\n"} {
			if err := os.WriteFile(file, []byte(text+more), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, code := run(t, args...); (code == 0) != (more == "") {
				t.Errorf("%s with %q: exit code %d:\n%s", role, more, code, out)
			}
		}
	}
}
