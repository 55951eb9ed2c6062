package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

type operated struct {
	*ferryProcess
	admin, http string
	token       string   // of the API; empty: it needs none
	more        []string // flags of every command
}

func operate(t *testing.T, args ...string) *operated {
	t.Helper()
	return operateIn(t, nil, args...)
}

func operateIn(t *testing.T, env []string, args ...string) *operated {
	t.Helper()
	return operateProcess(launch(t, env, args...))
}

func operateProcess(p *ferryProcess) *operated {
	p.t.Helper()
	lines := p.untilReady()
	at := addresses(lines[len(lines)-1])
	return &operated{ferryProcess: p, admin: at["admin"], http: at["http"]}
}

func (o *operated) ctl(code int, args ...string) (stdout, stderr string) {
	o.t.Helper()
	var out, errs strings.Builder
	line := append(append([]string{"ferry"}, args...), append([]string{"--admin", o.admin}, o.more...)...)
	if got := run(o.t.Context(), line, nil, &out, &errs); got != code {
		o.t.Errorf("%s: code %d, want %d\n%s%s", strings.Join(line, " "), got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

func (o *operated) wants(args string, want ...string) string {
	o.t.Helper()
	out, _ := o.ctl(exitOK, strings.Fields(args)...)
	for _, text := range want {
		if !strings.Contains(out, text) {
			o.t.Errorf("ferry %s: %q is missing in\n%s", args, text, out)
		}
	}
	return out
}

func (o *operated) refuses(args, want string) {
	o.t.Helper()
	if _, errs := o.ctl(exitFailed, strings.Fields(args)...); !strings.Contains(errs, want) {
		o.t.Errorf("ferry %s: %q is missing in\n%s", args, want, errs)
	}
}

func session(t *testing.T, ticket client.Ticket) *client.Session {
	t.Helper()
	s, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.Run(context.Background()) // It ends as the operator or the test lets it.
		close(ended)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Bind(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// match is a host with one player that have received from each other.
type match struct {
	host, player     *client.Session
	toPlayer, toHost *client.Peer
	hostID, playerID string
	code             string
	sent, sentBytes  uint64 // of both, as RELAYs
}

func (o *operated) match() (m match) {
	o.t.Helper()
	caller := o.caller()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	ticket, err := client.Reserve(ctx, caller, 4, "")
	if err != nil {
		o.t.Fatal(err)
	}
	m.host, m.hostID = session(o.t, ticket), ticket.ID.String()
	if m.code, err = caller.JoinCode(ctx, ticket.ID.String()); err != nil {
		o.t.Fatal(err)
	}
	joined, err := client.Redeem(ctx, caller, m.code)
	if err != nil {
		o.t.Fatal(err)
	}
	m.player, m.playerID = session(o.t, joined), joined.ID.String()
	if m.toHost, err = m.player.Connect(ctx); err != nil {
		o.t.Fatal(err)
	}
	if _, err := m.toHost.Write([]byte("hello")); err != nil {
		o.t.Fatal(err)
	}
	if m.toPlayer, err = m.host.Accept(ctx); err != nil {
		o.t.Fatal(err)
	}
	m.sent, m.sentBytes = 1, proto.RelayOverhead+uint64(len("hello"))
	return m
}

func (o *operated) caller() *api.Client { return &api.Client{BaseURL: o.http, Token: o.token} }

// TestCtl: an operator looks at a match, kicks its player, closes its host and
// lets the process run dry.
func TestCtl(t *testing.T) {
	t.Parallel()
	o := operate(t, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "1")
	nodes := o.wants("ctl nodes", "dev", "ready", o.http)
	m := o.match()
	o.wants("ctl allocations", m.hostID, m.playerID, "dev/dev", "udp4", "1 of 4")
	if out := o.wants("ctl allocations --role joiner", m.playerID); strings.Contains(strings.ReplaceAll(out, "  "+m.hostID, ""), m.hostID) {
		t.Errorf("the host is among the joiners:\n%s", out)
	}
	o.wants("ctl allocations --project dev", m.hostID, m.playerID)
	o.refuses("ctl allocations --environment dev", "environment: needs a project")
	o.wants("ctl allocations --project dev --environment dev --bound true --transport udp4 --match "+m.hostID, m.playerID)
	o.wants("ctl players "+m.hostID+" --watch --every 100ms -n 2", m.playerID)
	o.refuses("ctl players "+m.playerID, "its host is "+m.hostID)
	o.wants("ctl usage", "dev/dev  2            1      2")
	o.wants("ctl config", "idle_timeout", "--workers")
	o.wants("ctl log-level", "info\n")
	o.wants("ctl log-level debug", "debug\n")
	o.says("log level changed")
	o.wants("ctl reload", "no setting has changed")
	var all operator.Allocations
	if err := json.Unmarshal([]byte(o.wants("ctl allocations -o json")), &all); err != nil || len(all.Allocations) != 2 {
		t.Errorf("%v: %+v", err, all)
	}
	o.refuses("ctl kick "+m.hostID, "cannot be kicked")
	o.wants("ctl allocations --role host --limit 3 --node 3f2a --curl", "curl -sS --fail-with-body '"+o.admin+
		"/nodes/3f2a/allocations?limit=3&role=host'\n")
	o.wants("ctl usage --node 3f2a --curl", "curl -sS --fail-with-body '"+o.admin+"/nodes/3f2a/usage'\n")
	o.wants("ctl kick "+m.playerID+" --curl", "curl -sS --fail-with-body -X POST '"+o.admin+"/allocations/"+m.playerID+"/kick'\n")
	o.wants("ctl kick "+m.playerID, m.playerID+" kicked\n")
	o.refuses("ctl kick "+m.playerID, "not found")
	if out := o.wants("ctl allocations", m.hostID); strings.Contains(out, m.playerID) {
		t.Errorf("the kicked player is still there:\n%s", out)
	}
	o.wants("ctl close "+m.hostID, m.hostID+" closed\n")
	o.refuses("ctl close "+m.hostID, "not found")

	second := o.match() // Or the drain ends it at once.
	o.refuses("ctl drain 0000 --deadline 1h", "no known node has an id")
	id := strings.Fields(strings.Split(nodes, "\n")[1])[0]
	o.wants("ctl drain "+id[:8]+" --deadline 1h", "draining, allocations left: 2;")
	o.wants("ctl nodes", "draining")
	o.wants("ctl undrain", "not draining, allocations: 2")
	o.wants("ctl drain --threshold 1", "ends at 1")
	o.wants("ctl close " + second.playerID)
	if code := o.exit(); code != exitOK {
		t.Errorf("it ended with %d after the drain", code)
	}
	o.refuses("ctl nodes", "nothing listens at "+o.admin)
}

// TestCtlBans: each ban says first what it ends and shuts out, and asks, and a prefix removes the bans of it and
// inside it.
func TestCtlBans(t *testing.T) {
	t.Parallel()
	o := operate(t, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "1")
	o.match()
	const ask = "ferry: no ban was made: give --yes to ban without a question on a terminal\n"
	for _, c := range []struct {
		args, code, stdout, stderr string
	}{
		{"ban 127.0.0.0/8", "1", "", "The ban of 127.0.0.0/8 ends now: hosts 1 (each with its match; others in these matches: 0), joiners 1, " +
			"WebSocket connections 0. All players of this network are shut out: allocate, join and migrate are refused, and what they send " +
			"is dropped. Calls of backends with a token of kind server are not refused.\n" + ask},
		{"ban 192.0.2.7", "1", "", "The ban of 192.0.2.7/32 ends now: hosts 0, joiners 0"},
		{"ban 192.0.2.7", "1", "", ask},
		{"ban --player ann --project dev --environment dev", "1", "", "The ban of player ann of dev/dev ends now: hosts 0, joiners 0. " +
			"Allocate, join and migrate of this player are refused, also when a backend calls for it.\n" + ask},
		{"ban --yes --player anonymous-1 --project dev --environment dev", "1", "", "anonymous-1 is a caller without a token, which has " +
			"another name with each call: ban its network\n"},
		{"ban --yes 0.0.0.0/0", "1", "", "ferry: ban: 0.0.0.0/0 is larger than a /8\n"},
		{"ban --yes nonsense", "1", "", "neither an address nor a prefix"},
		{"ban 10.0.0.0/8 --curl", "0", "-X POST '", ""},
		{"ban 10.0.0.0/8 --yes", "0", "10.0.0.0/8 banned until", "hosts 0, joiners 0"},
		{"ban 10.1.0.0/24 -y", "0", "10.1.0.0/24 banned until", "hosts 0"},
		{"ban 10.2.3.4 --yes --reason flood", "0", "10.2.3.4/32 banned until", "hosts 0"},
		{"ban 2001:db8::1 --yes", "0", "2001:db8::/56 banned until", "The ban of 2001:db8::/56 ends now"},
		{"ban --yes --player ann --project dev --environment dev", "0", "player ann of dev/dev banned until", "ends now"},
		{"unban 10.9.9.9", "1", "", "no ban is of 10.9.9.9/32, which is inside of a banned network: 10.0.0.0/8 ("},
		{"unban 10.2.0.0/16", "0", "removed: 10.2.3.4/32, until ", ""},
		{"unban 10.1.0.0/24", "0", "still banned, as a part of 10.0.0.0/8 until", ""},
		{"ban 10.1.0.0/24 --yes", "0", "banned", "ends now"},
		{"unban 10.0.0.0/8", "0", "removed: 10.1.0.0/24, until ", ""},
		{"unban 10.0.0.0/8", "1", "", "no ban is of 10.0.0.0/8 or of a network inside it"},
		{"unban 2001:db8::/32", "0", "removed: 2001:db8::/56, until ", ""},
		{"unban --player bob --project dev --environment dev", "1", "", "player bob of dev/dev is not banned"},
		{"unban --player ann --project dev", "1", "", "a player with its project and environment"},
		{"unban --player ann --project dev --environment dev", "0", "removed: player ann of dev/dev", ""},
		{"unban 00000000", "1", "", `no ban has the id "00000000"`},
		{"unban", "2", "", "name a BAN, a PREFIX or a --player"},
	} {
		code, _ := strconv.Atoi(c.code)
		out, errs := o.ctl(code, append([]string{"ctl"}, strings.Fields(c.args)...)...)
		if !strings.Contains(out, c.stdout) || !strings.Contains(errs, c.stderr) || c.stderr == "" && errs != "" {
			t.Errorf("ctl %s:\n%s%s", c.args, out, errs)
		}
	}
	if out := o.wants("ctl bans"); strings.Count(out, "\n") != 1 {
		t.Errorf("bans are left:\n%s", out)
	}
}

// TestReloadBySignal: SIGHUP and ctl read the file again, and a bad one is
// refused with its line.
func TestReloadBySignal(t *testing.T) {
	t.Parallel()
	const token = "an-admin-token-of-the-tests"
	tokenFile := filepath.Join(t.TempDir(), "token")
	file := settings(t, "state_dir: "+t.TempDir(), "admin_token_file: "+tokenFile, "region: eu")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(tokenFile, token+"\n")
	o := operate(t, "serve", "-c", file, "--workers", "1")
	o.refuses("ctl nodes", "--token-file")
	o.more = []string{"--token-file", tokenFile}
	o.wants("ctl config", "region", "eu", file+":", `tokens[0].secret`, `"[hidden]"`)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put(file, string(good)+"max_seats: many\nlog_level: debug\n")
	o.signal(syscall.SIGHUP)
	o.says("reload: refused")
	o.refuses("ctl reload", "max_seats: \"many\" is not a whole number (status 422)")
	o.wants("ctl log-level", "info\n")

	put(file, strings.Replace(string(good), "region: eu", "region: us", 1)+"max_seats: 50\nlog_level: debug\n")
	o.signal(syscall.SIGHUP)
	o.says("reload: done")
	o.wants("ctl log-level", "debug\n")
	o.wants("ctl nodes", "0 of 50", "eu")
	o.wants("ctl reload", "region   eu   us  after a restart")
	o.signal(syscall.SIGTERM)
	if code := o.exit(); code != exitOK {
		t.Errorf("it ended with %d", code)
	}
	if log := o.stderr.String(); strings.Contains(log, token) || strings.Contains(log, "a-secret-of-the-tests") {
		t.Errorf("the log shows a secret:\n%s", log)
	}
}

// TestCtlUsage: invalid arguments are refused before any request.
func TestCtlUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"ctl sing":                                   `ctl has no command "sing"`,
		"ctl nodes extra":                            `unexpected argument "extra"`,
		"ctl kick":                                   "PLAYER is missing",
		"ctl kick a b":                               `unexpected argument "b"`,
		"ctl players":                                "HOST is missing",
		"ctl close":                                  "ID is missing",
		"ctl log-level debug info":                   "unexpected argument",
		"ctl nodes -o yaml":                          "neither table nor json",
		"ctl nodes --admin 127.0.0.1:7778":           "is not the URL of admin pages",
		"ctl nodes --token-file /nowhere":            "/nowhere",
		"ctl nodes --ca /nowhere":                    "/nowhere",
		"ctl nodes --every 1s":                       "are for --watch",
		"ctl nodes -w --every 1ms":                   "100ms to 1h",
		"ctl nodes -w -n -1":                         "is negative",
		"ctl allocations --limit -1":                 "is negative",
		"ctl drain --deadline soon":                  "See: ferry ctl drain --help",
		"ctl nodes --nonsense --admin http://x:7778": "See: ferry ctl nodes --help",
	} {
		var out, errs strings.Builder
		code := run(t.Context(), append([]string{"ferry"}, strings.Fields(args)...), nil, &out, &errs)
		if code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("ferry %s: code %d, %s, want %q", args, code, errs.String(), want)
		}
	}
}

// TestCtlHelp: every command has an example that begins as it is typed, and ctl
// without one shows all of them.
func TestCtlHelp(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if code := run(t.Context(), []string{"ferry", "ctl"}, nil, &out, &out); code != exitOK {
		t.Errorf("code %d", code)
	}
	for _, cmd := range controlCommand(streams{}).Commands {
		if !strings.Contains(cmd.Description, "ferry ctl "+cmd.Name) || !strings.Contains(cmd.Description, "Example") {
			t.Errorf("ctl %s has no example", cmd.Name)
		}
		if !strings.Contains(out.String(), fmt.Sprint(cmd.Name, "  ")) || !strings.Contains(out.String(), cmd.Usage) {
			t.Errorf("ctl %s is missing in\n%s", cmd.Name, out.String())
		}
	}
}

// TestClusterCA makes the certificates of a fleet as its help says, and holds them
// against the settings of both roles.
func TestClusterCA(t *testing.T) {
	t.Parallel()
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
		{[]string{dir, "revoke", "--name", "eu-1"}, exitOK, "ca.pem"},
		{[]string{dir, "revoke"}, exitUsage, "is no name"},
		{[]string{dir, "revoke", "--name", "unknown"}, exitFailed, "unknown.pem"},
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
		{"", exitOK, "# relay would start with these settings (cluster_cert is of a relay)\n", "tokens"},
		{"relay", exitOK, "# relay would start with these settings\n", "tokens"},
		{"serve", exitOK, "# serve would start with these settings\n", "store"},
		{"api", exitFailed, "", "udp"}, // The certificate is a relay's.
		{"boss", exitUsage, "", ""},
	} {
		var out, errs strings.Builder
		line := []string{"ferry", "check", "-c", path, "--role", c.role}
		if c.role == "" {
			line = line[:4]
		}
		code := run(t.Context(), line, nil, &out, &errs)
		if code != c.code || !strings.HasSuffix(out.String(), c.ends) || !strings.Contains(errs.String(), c.warning) {
			t.Errorf("%s: exit code %d, want %d\n%s\n%s", c.role, code, c.code, &out, &errs)
		}
		if c.warning != "" && !strings.Contains(errs.String(), "warning: "+c.warning+" ("+path) {
			t.Errorf("%s: no warning about %s:\n%s", c.role, c.warning, &errs)
		}
	}
}
