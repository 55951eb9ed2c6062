package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("from-a-file-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := load(t, nil, "-c", write(t, `# all forms of a value
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
`))
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
	if len(l.Tokens) != 2 || l.Tokens[0] != want[0] || l.Tokens[1] != want[1] {
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
		{"flag's spelling", "state-dir: /x\n", `:1: unknown key "state-dir"`},
		{"key twice", "region: eu\nregion: us\n", `region`},
		{"no value", "http:\n", ":1: http: has no value"},
		{"list for one value", "http: [a, b]\n", ":1: http: wants a plain value"},
		{"mapping for a value", "http: {a: b}\n", ":1: http: wants a plain value"},
		{"mapping in a list", "udp:\n  - a: b\n", ":2: udp: wants a plain value"},
		{"bad value", "\n\nidle_timeout: soon\n", `:3: idle_timeout: "soon" is not a time span`},
		{"out of range", "workers: 1000\n", ":1: workers: 1000 is not within 0 to 256"},
		{"no mapping", "- a\n", ":1: wants keys and values"},
		{"empty list", "udp: []\n", "udp: no address is given"},
		{"two documents", "region: a\n---\nregion: b\n", "more than one document"},
		{"no YAML", "a: [\n", "line"},
		{"tokens no list", "tokens: x\n", ":1: tokens: wants a list"},
		{"token no mapping", "tokens: [x]\n", ":1: tokens[0].wants keys"},
		{"unknown key of a token", "tokens:\n  - secret: x\n    projekt: y\n", `:3: unknown key "tokens[0].projekt"`},
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
			return // No test input shall open files.
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
