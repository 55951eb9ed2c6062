package config

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"
)

// load parses args as ferry does and calls Load with the defaults of dev.
func load(t *testing.T, environ []string, args ...string) (Loaded, error) {
	t.Helper()
	var loaded Loaded
	var err error
	cmd := &cli.Command{
		Name: "test", Flags: Flags(Dev()),
		Action: func(_ context.Context, cmd *cli.Command) error {
			loaded, err = Load(cmd, environ, Dev())
			return nil
		},
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
	}
	if runErr := cmd.Run(t.Context(), append([]string{"test"}, args...)); runErr != nil {
		t.Fatalf("command line: %v", runErr)
	}
	return loaded, err
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ferry.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// others holds two non-default values for every setting that has a flag, as text.
var others = map[string][2]string{
	"udp": {"127.0.0.1:1,[::1]:1", "0.0.0.0:2"}, "http": {"127.0.0.1:3", "127.0.0.1:4"},
	"admin": {"127.0.0.1:5", "127.0.0.1:6"}, "admin_public": {"true", "false"},
	"admin_token_file": {"/a", "/b"}, "max_seats": {"101", "102"},
	"advertise": {"203.0.113.1", "203.0.113.2:3,2001:db8::1"},
	"tls_cert":  {"a.pem", "b.pem"}, "tls_key": {"a.key", "b.key"},
	"state_dir": {"/a", "/b"}, "runtime_dir": {"/c", "/d"}, "region": {"eu", "us"},
	"relay_id":        {"6a1c3f5e-0d2b-4c7a-9e8f-112233445566", "9a1c3f5e-0d2b-4c7a-9e8f-112233445566"},
	"max_connections": {"5", "6"}, "max_allocations": {"7", "8"}, "max_content": {"100", "200"},
	"idle_timeout": {"1s", "2s"}, "host_alone_timeout": {"3s", "4s"},
	"bind_timeout": {"5s", "6s"}, "host_migration": {"10s", "20s"},
	"workers": {"3", "4"}, "worker_cpus": {"0-3,8", "5"},
	"gso": {"false", "true"}, "receive_delay": {"200µs", "1ms"}, "xdp": {"tc", "auto"},
	"xdp_interfaces":        {"eth0,eth1", "eth2"},
	"trusted_proxies":       {"10.0.0.0/8,192.0.2.1/32", "fd00::/8"},
	"allow_private_sources": {"true", "false"},
	"recover_for":           {"0s", "10s"}, "drain_timeout": {"1h0m0s", "5s"},
	"joiner_datagrams": {"10", "0"}, "joiner_bytes": {"11", "0"}, "host_datagrams": {"12", "0"},
	"host_bytes":        {"13", "0"},
	"player_per_minute": {"15", "16"}, "server_per_minute": {"17", "18"},

	"player_hosts": {"1", "0"}, "player_seats_per_host": {"2", "0"},
	"max_http_connections": {"27", "28"},

	"websocket": {"false", "true"}, "advertise_name": {"relay.example.org", "r.example:444"},
	"admin_oidc_issuer": {"https://a.example", "https://b.example"}, "admin_oidc_client_id": {"a", "b"},
	"admin_oidc_secret_file": {"/a", "/b"},
	"admin_oidc_operators":   {"a@b.example,group:ops", "c@d.example"},
	"admin_oidc_viewers":     {"group:all", "e@f.example"},
	"allow_origins":          {"https://a.example,null", "https://b.example"},
	"acme":                   {"true", "false"},
	"acme_server":            {"https://a.example/dir", "https://b.example/dir"}, "proxy_protocol": {"true", "false"},

	"max_websockets": {"31", "32"}, "max_dtls_sessions": {"35", "36"},
	"log_level": {"debug", "error"}, "log_format": {"json", "text"}, "audit_file": {"/e", "/f"}, "capture": {"true", "false"},
	"admission_url": {"https://a.example/x", "https://b.example/y"}, "admission_secret_file": {"/a", "/b"},
	"admission_fail_open": {"true", "false"},
	"webhook_url":         {"https://a.example/x", "https://b.example/y"}, "webhook_secret_file": {"/a", "/b"},

	"store": {"redis://a:6379", "redis://b:6379"}, "store_password_file": {"/a", "/b"}, "store_ca": {"/a", "/b"},
	"store_timeout": {"1s", "200ms"}, "cluster": {"10.0.0.1:7779", "[::1]:1"},
	"cluster_advertise": {"10.0.0.1:1", "relay-1"},
	"cluster_ca":        {"/a", "/b"}, "cluster_cert": {"/a", "/b"}, "cluster_key": {"/a", "/b"},
	"region_description": {"Europe", "America"},
}

func value(c Config, key string) string {
	v := reflect.ValueOf(c)
	for _, s := range settings(v.Type()) {
		if s.key == key {
			return strings.Join(formats(v.Field(s.index)), ",")
		}
	}
	return "no such key"
}

// companion maps settings to settings that must be set together with them.
var companion = map[string]string{"tls_cert": "tls_key", "tls_key": "tls_cert"}

// TestSources: for every setting, a flag overrides the environment, which overrides
// the file, which overrides the default.
func TestSources(t *testing.T) {
	for _, s := range flagSettings() {
		two, ok := others[s.key]
		if !ok {
			t.Errorf("the test has no values for %s", s.key)
			continue
		}
		t.Run(s.key, func(t *testing.T) {
			text := s.key + ": \"" + two[0] + "\"\n"
			if c := companion[s.key]; c != "" {
				text += c + ": x\n"
			}
			file := write(t, text)
			env := []string{s.env() + "=" + two[1], "PATH=/bin", "FERRY_CONFIG=" + file}
			flag := "--" + s.flag() + "=" + two[0]
			for _, step := range []struct {
				name         string
				env, args    []string
				want, source string
			}{
				{"default", nil, nil, value(Dev(), s.key), "default"},
				{"file", nil, []string{"-c", file}, two[0], file + ":1"},
				{"file by variable", env[2:], nil, two[0], file + ":1"},
				{"environment over file", env, nil, two[1], s.env()},
				{"flag over environment", env, []string{flag}, two[0], "--" + s.flag()},
				{"empty variable", []string{s.env() + "="}, nil, value(Dev(), s.key), "default"},
			} {
				l, err := load(t, step.env, step.args...)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if step.want != "" && s.kind == reflect.TypeFor[Secret]() {
					step.want = hidden
				}
				if got := value(l.Config, s.key); got != step.want || l.Source(s.key) != step.source {
					t.Errorf("%s: %q from %q, want %q from %q", step.name, got, l.Source(s.key), step.want, step.source)
				}
			}
		})
	}
}

// TestFlagPerField: each field except lists of structs has a flag, and --config
// exists.
func TestFlagPerField(t *testing.T) {
	var names []string
	for _, f := range Flags(Serve()) {
		names = append(names, f.Names()[0])
	}
	want := []string{"config"}
	config := reflect.TypeFor[Config]()
	for i := range config.NumField() {
		nested := []string{"Tokens", "Issuers", "Quotas", "RegionStores"}
		if f := config.Field(i); !slices.Contains(nested, f.Name) {
			want = append(want, strings.ReplaceAll(f.Tag.Get("key"), "_", "-"))
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("flags %v\nwant  %v", names, want)
	}
	for _, s := range flagSettings() {
		if s.key == "" || s.usage == "" || s.group == "" {
			t.Errorf("field %d has no key, group or usage", s.index)
		}
	}
}

// TestTags: all min and max tags parse, and the defaults are valid.
func TestTags(t *testing.T) {
	for _, c := range []Config{Serve(), Dev()} {
		for _, s := range flagSettings() {
			if s.min != "" && s.bound(s.min) >= s.bound(s.max) {
				t.Errorf("%s: limits %q and %q", s.key, s.min, s.max)
			}
			if err := s.check(reflect.ValueOf(c).Field(s.index)); err != nil {
				t.Errorf("%s: default: %v", s.key, err)
			}
		}
		if err := c.validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestRepeatedFlag(t *testing.T) {
	l, err := load(t, nil, "--udp", "127.0.0.1:1", "--udp", "[::1]:1, localhost:2")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := value(l.Config, "udp"), "127.0.0.1:1,[::1]:1,127.0.0.1:2"; got != want {
		t.Errorf("udp is %q, want %q", got, want)
	}
}

func TestBadText(t *testing.T) {
	for _, c := range []struct{ env, arg, want string }{
		{"FERRY_HTTP=relay.example.org:1", "", `FERRY_HTTP: "relay.example.org:1" is not HOST:PORT`},
		{"FERRY_IDLE_TIMEOUT=10", "", `FERRY_IDLE_TIMEOUT: "10" is not a duration`},
		{"FERRY_IDLE_TIMEOUT=25h", "", "FERRY_IDLE_TIMEOUT: 25h0m0s is not within 250ms to 24h"},
		{"FERRY_PROXY_PROTOCOL=yes", "", `FERRY_PROXY_PROTOCOL: "yes" is neither true nor false`},
		{"FERRY_WORKERS=many", "", `FERRY_WORKERS: "many" is not a whole number`},
		{"FERRY_PROT=1", "", "FERRY_PROT: unknown environment variable"},
		{"FERRY_TOKENS=x", "", "FERRY_TOKENS: unknown environment variable"},
		{"", "--max-content=1435", "--max-content: 1435 is not within 1 to 1434"},
		{"", "--max-connections=0", "--max-connections: 0 is not within 1 to 65535"},
		{"", "--log-format=xml", `--log-format: "xml" is not one of text, json`},
		{"", "--log-level=loud", `--log-level: "loud" is not one of`},
		{"", "--udp=1.2.3.4:65536", `port "65536" is not a number`},
		{"", "--advertise=relay.example.org", "is not an IP address"},
		{"", "--advertise=0.0.0.0", "is not an IP address"},
		{"", "--trusted-proxies=proxy.example.org", "is not an IP address or a network such as"},
		{"", "--trusted-proxies=10.0.0.0/33", "is not an IP address or a network such as"},
		{"", "--drain-timeout=169h", "drain-timeout: 169h0m0s is not within 0s to 168h"},
		{"", "--region=", "region: is empty"},
		{"", "--tls-cert=x", "one without the other"},
		{"FERRY_ACME=true FERRY_TLS_KEY=y", "--tls-cert=x", "set one, not both"},
		{"FERRY_ACME_DOMAINS=relay.example.org", "", "acme: true obtains a certificate for advertise_name"},
		{"", "--config=/nowhere/ferry.yaml", "no such file"},
	} {
		var args []string
		if c.arg != "" {
			args = []string{c.arg}
		}
		if _, err := load(t, strings.Fields(c.env), args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.env, c.arg, err, c.want)
		}
	}
}

// TestKubernetes: the variables that Kubernetes sets for a service named ferry are
// ignored.
func TestKubernetes(t *testing.T) {
	env := []string{"FERRY_SERVICE_HOST=10.0.0.1", "FERRY_PORT=udp://10.0.0.1:7777", "FERRY_PORT_7777_UDP=x"}
	if _, err := load(t, env); err != nil {
		t.Error(err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	file := write(t, "regoin: eu\nworkers: -1\n")
	_, err := load(t, []string{"FERRY_HTTP=x"}, "-c", file, "--max-content=0")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{file + `:1: unknown key "regoin"`, file + ":2: workers: -1", "FERRY_HTTP", "--max-content"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
}

func TestAddrText(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:1": "127.0.0.1:1", ":1": "0.0.0.0:1", "[::]:0": "[::]:0", "[::ffff:1.2.3.4]:5": "1.2.3.4:5",
	} {
		var a Addr
		if err := a.UnmarshalText([]byte(text)); err != nil || a.AddrPort != netip.MustParseAddrPort(want) {
			t.Errorf("%q is %v (%v), want %s", text, a, err, want)
		}
	}
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "::ffff:10.1.2.3": "10.1.2.3/32", "2001:db8::1": "2001:db8::1/128",
	} {
		var n Network
		if err := n.UnmarshalText([]byte(text)); err != nil || n.String() != want {
			t.Errorf("%q is %v (%v), want %s", text, n, err, want)
		}
	}
	if Dev().IdleTimeout != 10*time.Second {
		t.Error("the published idle limit is 10 s")
	}
	if Serve().BindTimeout != 10*time.Second || Dev().BindTimeout != 10*time.Minute {
		t.Errorf("time to bind: %v, and %v in dev", Serve().BindTimeout, Dev().BindTimeout)
	}
}

// TestFile: the files are as editors of Unix and of Windows write them.
func TestFile(t *testing.T) {
	t.Run("unix", func(t *testing.T) { testFile(t, func(text string) string { return text }) })
	t.Run("windows", func(t *testing.T) {
		testFile(t, func(text string) string { return "\ufeff" + strings.ReplaceAll(text, "\n", "\r\n") })
	})
}

func testFile(t *testing.T, edit func(text string) string) {
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(edit("from-a-file-0123456789\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := load(t, nil, "-c", write(t, edit(`# all forms of a value
udp:
  - 127.0.0.1:1
  - "[::1]:1"
advertise: 203.0.113.1, 2001:db8::1
region: 12
tokens:
  - secret: in-the-file-0123456789
    project: game
    environment: production
    kind: server
  - secret_file: `+secret+`
    project: game
    environment: test
    player: alice
`)))
	if err != nil {
		t.Fatal(err)
	}
	if len(l.UDP) != 2 || len(l.Advertise) != 2 || l.Region != "12" {
		t.Errorf("got %v, %v, %q", l.UDP, l.Advertise, l.Region)
	}
	want := []Token{
		{Secret: "in-the-file-0123456789", Project: "game", Environment: "production", Kind: "server"},
		{Secret: "from-a-file-0123456789", SecretFile: secret, Project: "game", Environment: "test", Player: "alice", Kind: "player"},
	}
	if !reflect.DeepEqual(l.Tokens, want) {
		t.Errorf("tokens are %+v", l.Tokens)
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n"} {
		l, err := load(t, nil, "-c", write(t, text))
		if err != nil || l.Region != "default" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestStrictFile(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "region: eu\nport: 1\n", `:2: unknown key "port"`},
		{"flag's spelling", "state-dir: /x\n", `:1: unknown key "state-dir"; did you mean state_dir?`},
		{"key twice", "region: eu\nregion: us\n", `region`},
		{"no value", "http:\n", ":1: http: has no value"},
		{"list for one value", "http: [a, b]\n", ":1: http: must be a plain value"},
		{"mapping for a value", "http: {a: b}\n", ":1: http: must be a plain value"},
		{"mapping in a list", "udp:\n  - a: b\n", ":2: udp: must be a plain value"},
		{"bad value", "\n\nidle_timeout: soon\n", `:3: idle_timeout: "soon" is not a duration`},
		{"out of range", "workers: 1000\n", ":1: workers: 1000 is not within 0 to 256"},
		{"no mapping", "- a\n", ":1: must be a mapping of keys to values"},
		{"empty list", "udp: []\n", "udp: no address is given"},
		{"two documents", "region: a\n---\nregion: b\n", "more than one document"},
		{"no YAML", "a: [\n", "line"},
		{"tokens no list", "tokens: x\n", ":1: tokens: must be a list"},
		{"token no mapping", "tokens: [x]\n", ":1: tokens[0].must be a mapping"},
		{"unknown key of a token", "tokens:\n  - secret: x\n    projekt: y\n", `:3: unknown key "tokens[0].projekt"; did you mean project?`},
		{"kind", "tokens:\n  - secret: x\n    kind: admin\n", `:3: tokens[0].kind: "admin" is not one of player, server`},
		{"no secret", "tokens:\n  - project: x\n", ":2: tokens[0]: needs either secret or secret_file"},
		{"two secrets", "tokens:\n  - secret: x\n    secret_file: y\n", ":2: tokens[0]: needs either"},
		{"secret file is not there", "tokens:\n  - secret_file: /nowhere/token\n", "tokens[0]: secret_file: open /nowhere/token"},
		{"secret file is empty", "tokens:\n  - secret_file: " + empty + "\n", "is empty"},
		{"merge key", "x: &x {region: a}\n<<: *x\n", `unknown key "<<"`},
	} {
		_, err := load(t, nil, "-c", write(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %q", c.name, err, c.want)
		}
	}
}

func TestLargeFile(t *testing.T) {
	if _, err := load(t, nil, "-c", write(t, strings.Repeat("#", maxFile+1))); err == nil {
		t.Error("no error")
	}
}

func FuzzFile(f *testing.F) {
	f.Add("region: eu\ntokens:\n  - secret: x\n    project: p\n")
	f.Add("a: &a [*a]\nudp: *a\n")
	f.Add("? [a]\n: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		root, err := document([]byte(text))
		if err != nil || root == nil || strings.Contains(text, "secret_file") {
			return // The fuzzer must not open files.
		}
		c := Dev()
		file := file{path: "f"}
		lines := file.mapping(root, reflect.ValueOf(&c).Elem(), "")
		for key, line := range lines {
			if line < 1 || value(c, key) == "no such key" {
				t.Errorf("key %q in line %d", key, line)
			}
		}
	})
}
