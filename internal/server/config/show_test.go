package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const testSecret = "hush-hush-0123456789"

func TestPrintRoundTrip(t *testing.T) {
	file := write(t, "region: \"a b: #c\"\nudp: ['127.0.0.1:1', '[::1]:2']\nadvertise: '203.0.113.4:5'\nlog_format: json\n")
	first, err := load(t, []string{"FERRY_WORKERS=2"}, "-c", file, "--idle-timeout=90s", "--admin-public")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := first.Print(&out); err != nil {
		t.Fatal(err)
	}
	second, err := load(t, nil, "-c", write(t, out.String()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if !reflect.DeepEqual(first.Config, second.Config) {
		t.Errorf("after Print and Load:\n%+v\nwant\n%+v", second.Config, first.Config)
	}
	for _, want := range []string{
		"workers: 2 ", "# FERRY_WORKERS\n", "idle_timeout: 1m30s ", "# --idle-timeout\n",
		"# " + file + ":1\n", "http: 127.0.0.1:7777 ", "# default\n", "tokens: [] ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	l, err := load(t, nil, "-c", write(t, "tokens:\n  - secret: "+testSecret+"\n    project: p\n    environment: e\n"))
	if err != nil {
		t.Fatal(err)
	}
	if string(l.Tokens[0].Secret) != testSecret {
		t.Fatal("the secret was not read")
	}
	var out strings.Builder
	if err := l.Print(&out); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "loaded", l, "secret", l.Tokens[0].Secret)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "loaded", l.Config, "secret", l.Tokens[0].Secret)
	asJSON, err := json.Marshal(l.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%s %v %+v %#v %x %q", asJSON, l, l, l, l.Tokens[0].Secret, l.Tokens[0].Secret)
	if strings.Contains(out.String(), testSecret) || strings.Contains(out.String(), fmt.Sprintf("%x", testSecret)) {
		t.Errorf("the secret is in\n%s", out.String())
	}
	if !strings.Contains(out.String(), `secret: "[hidden]"`) {
		t.Errorf("print does not say that there is a secret:\n%s", out.String())
	}
}

func TestSecretNotInErrors(t *testing.T) {
	for _, text := range []string{
		"tokens:\n  - secret: " + testSecret + "\n    secret_file: x\n",
		"tokens:\n  - secret: [" + testSecret + "]\n",
		"tokens:\n  - secret: " + testSecret + "\n    kind: king\n",
	} {
		_, err := load(t, nil, "-c", write(t, text))
		if err == nil || strings.Contains(err.Error(), testSecret) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestChanges: a change has both values and no secret.
func TestChanges(t *testing.T) {
	was, now := Serve(), Serve()
	was.TrustedProxies = []Network{} // equals nil
	if got := Changes(&was, &now); len(got) != 0 {
		t.Errorf("no setting has changed: %v", got)
	}
	was.Tokens = []Token{{Secret: "a-secret-of-the-tests", Project: "p"}}
	now.Tokens = []Token{{Secret: "another-secret-of-the-tests", Project: "p"}, {Secret: "a-secret-of-the-tests", Project: "q"}}
	was.Issuers = []Issuer{{Preset: "development", HS256Key: "a-secret-of-the-tests", Kind: "player"}}
	was.Quotas = []Quota{{Project: "a", Allocations: 5}}
	for _, project := range strings.Split("abcde", "") {
		now.Quotas = append(now.Quotas, Quota{Project: project, Allocations: 5})
	}
	now.Region, now.IdleTimeout, now.AllowOrigins = "eu", time.Minute, []string{"https://a", "https://b"}
	want := []operator.SettingChange{
		{Key: "allow_origins", Was: "[]", Now: `[https://a, https://b]`}, {Key: "region", Was: "default", Now: "eu"},
		{Key: "idle_timeout", Was: "10s", Now: "1m0s"},
		{Key: "tokens", Was: "1: {project: p}", Now: "2: {project: p}, {project: q}"},
		{Key: "issuers", Was: "1: {preset: development, kind: player}", Now: "0"},
		{Key: "quotas", Was: "1", Now: "5: {project: b, allocations: 5}, {project: c, allocations: 5}, {project: d, allocations: 5}, and 1 more"},
	}
	got := Changes(&was, &now)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if strings.Contains(fmt.Sprint(got), "secret-of") {
		t.Errorf("a secret is shown: %v", got)
	}
}

// TestChangesWithEqualText: a change in the order of a list or in a secret has a note.
func TestChangesWithEqualText(t *testing.T) {
	a, b := Quota{Project: "a", Allocations: 1}, Quota{Project: "b", Players: 1}
	token := func(secret Secret) Token { return Token{Secret: secret, Project: "p"} }
	for _, c := range []struct {
		was, now Config
		want     operator.SettingChange
	}{
		{Config{Quotas: []Quota{a, b}}, Config{Quotas: []Quota{b, a}},
			operator.SettingChange{Key: "quotas", Was: "2", Now: "2 (in another order)"}},
		{Config{Tokens: []Token{token("x")}}, Config{Tokens: []Token{token("y")}},
			operator.SettingChange{Key: "tokens", Was: "1: {project: p}", Now: "1: {project: p} (with another secret)"}},
		{Config{Store: "redis://x"}, Config{Store: "redis://y"},
			operator.SettingChange{Key: "store", Was: `"[hidden]"`, Now: `"[hidden]" (with another secret)`}},
	} {
		if got := Changes(&c.was, &c.now); len(got) != 1 || got[0] != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

func TestChangesCoverEverySetting(t *testing.T) {
	texts := map[string]string{
		"Addr": "127.0.0.1:1", "Name": "a.example", "RelayID": "6a1c3f5e-0d2b-4c7a-9e8f-112233445566",
	}
	for _, s := range settings(reflect.TypeFor[Config]()) {
		was, now := Config{}, Config{}
		field := reflect.ValueOf(&now).Elem().Field(s.index)
		switch field.Kind() {
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int, reflect.Int64:
			field.SetInt(1)
		case reflect.String:
			field.SetString("x")
		default:
			if err := parse(field, texts[field.Type().Name()]); err != nil {
				t.Fatalf("%s: %v", s.key, err)
			}
		}
		if got := Changes(&was, &now); len(got) != 1 || got[0].Key != s.key {
			t.Errorf("%s: %v", s.key, got)
		}
		if was.CopySettings(&now, []string{s.key}); len(Changes(&was, &now)) != 0 {
			t.Errorf("%s was not copied", s.key)
		}
	}
}

// TestWithSettings: only the given keys are copied, with their sources.
func TestWithSettings(t *testing.T) {
	was := Loaded{Config: Serve(), sources: map[string]string{"workers": "--workers"}}
	read := Loaded{Config: Serve(), sources: map[string]string{"region": "f:1", "log_level": "f:2", "workers": "f:3"}}
	read.Region, read.LogLevel, read.Workers = "eu", "debug", 7
	next := was.WithSettings(read, []string{"log_level"})
	if next.Region != "default" || next.LogLevel != "debug" || next.Workers != 0 || was.LogLevel != "info" {
		t.Errorf("region %s, level %s, workers %d; before %s", next.Region, next.LogLevel, next.Workers, was.LogLevel)
	}
	for key, want := range map[string]string{"log_level": "f:2", "region": "default", "workers": "--workers"} {
		if got := next.Source(key); got != want {
			t.Errorf("%s is from %q, want %q", key, got, want)
		}
	}
}

// TestValues: each setting has its source, and secrets are hidden.
func TestValues(t *testing.T) {
	l := Loaded{Config: Serve(), sources: map[string]string{"region": "f:1", "tokens": "f:2"}}
	l.Region = "eu"
	l.Tokens = []Token{{Secret: "a-secret-of-the-tests", Project: "p", Kind: "server"}}
	shown := map[string]operator.Setting{}
	for _, s := range l.Values() {
		shown[s.Key] = s
	}
	for _, want := range []operator.Setting{
		{Key: "region", Value: "eu", Source: "f:1"}, {Key: "idle_timeout", Value: "10s", Source: "default"},
		{Key: "tokens[0].project", Value: "p", Source: "f:2"}, {Key: "tokens[0].secret", Value: `"[hidden]"`, Source: "f:2"},
		{Key: "tokens[0].kind", Value: "server", Source: "f:2"},
	} {
		if got := shown[want.Key]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if _, ok := shown["tokens[0].player"]; ok {
		t.Error("an empty member is shown")
	}
	if strings.Contains(fmt.Sprintf("%v", l.Values()), "a-secret") {
		t.Error("the secret is shown")
	}
}

func TestReadSecret(t *testing.T) {
	for text, want := range map[string]string{"abc\n": "abc", "abc\r\n": "abc", "a b": "a b", "\ufeffabc\r\n": "abc"} {
		got, err := ReadSecret(write(t, text))
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, string(got), err)
		}
	}
	for _, text := range []string{"", "\n", "\ufeff\r\n", "\xff\xfea\x00b\x00\r\x00\n\x00", strings.Repeat("x", maxSecretFile+1)} {
		if _, err := ReadSecret(write(t, text)); err == nil {
			t.Errorf("%.10q: no error", text)
		}
	}
}
