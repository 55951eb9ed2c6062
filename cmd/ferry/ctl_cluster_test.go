package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClusterCA makes the certificates of a fleet as its help says, and holds them
// against the settings of both roles.
func TestClusterCA(t *testing.T) {
	dir, stateDir := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "state")
	const id = "6a1c3f5e-0d2b-4c7a-9e8f-112233445566"
	for _, c := range []struct {
		args []string
		code int
		want string // in the output, or in the errors
	}{
		{[]string{dir, "api"}, exitFailed, "makes one"},
		{[]string{dir}, exitOK, "ca-key.pem"},
		{[]string{dir}, exitFailed, "already exists"},
		{[]string{dir, "api"}, exitOK, "api.pem"},
		{[]string{dir, "relay", "--state-dir", stateDir}, exitOK, "relay-key.pem"},
		{[]string{dir, "relay", "--relay", id, "--name", "eu-1"}, exitOK, "eu-1.pem"},
		{[]string{dir, "relay"}, exitFailed, "relay id"},
		{[]string{dir, "relay", "--relay", "x"}, exitUsage, "is no id"},
		{[]string{dir, "relay", "--relay", id, "--state-dir", stateDir}, exitUsage, "one is enough"},
		{[]string{dir, "api", "--name", "../api"}, exitUsage, "is no name"},
		{[]string{dir, "api", "--name", "ca"}, exitUsage, "is no name"},
		{[]string{dir, "boss"}, exitFailed, "boss"},
		{[]string{}, exitUsage, "DIR is missing"},
		{[]string{dir, "api", "x"}, exitUsage, "unexpected"},
	} {
		var out, errs strings.Builder
		args := append([]string{"ferry", "ctl", "cluster-ca"}, c.args...)
		if code := run(t.Context(), args, nil, &out, &errs); code != c.code || !strings.Contains(out.String()+errs.String(), c.want) {
			t.Errorf("%v: exit code %d, want %d with %q:\n%s%s", c.args, code, c.code, c.want, &out, &errs)
		}
	}
	for _, name := range []string{"ca-key.pem", "api-key.pem", "relay-key.pem"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	checkRoles(t, dir, stateDir)
}

// checkRoles asks ferry check about one file for all roles.
func checkRoles(t *testing.T, dir, stateDir string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ferry.yaml")
	text := fmt.Sprintf(`store: redis://10.0.0.5:6379
cluster_ca: %[1]s/ca.pem
cluster_cert: %[1]s/relay.pem
cluster_key: %[1]s/relay-key.pem
udp: 127.0.0.1:7777
http: 127.0.0.1:7777
state_dir: %[2]s
region_description: Europe
tokens:
  - secret: a-secret-of-the-tests
    project: game
    environment: test
`, dir, stateDir)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		role    string
		code    int
		ends    string
		warning string
	}{
		{"relay", exitOK, "# relay would start with these settings\n", "tokens"},
		{"serve", exitOK, "# serve would start with these settings\n", "store"},
		{"api", exitFailed, "", "udp"}, // The certificate is a relay's.
		{"boss", exitUsage, "", ""},
	} {
		var out, errs strings.Builder
		code := run(t.Context(), []string{"ferry", "check", "-c", path, "--role", c.role}, nil, &out, &errs)
		if code != c.code || !strings.HasSuffix(out.String(), c.ends) || !strings.Contains(errs.String(), c.warning) {
			t.Errorf("%s: exit code %d, want %d\n%s\n%s", c.role, code, c.code, &out, &errs)
		}
		if c.warning != "" && !strings.Contains(errs.String(), "warning: "+c.warning+" ("+path) {
			t.Errorf("%s: no warning about %s:\n%s", c.role, c.warning, &errs)
		}
	}
}
