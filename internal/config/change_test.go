package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestChanges: what differs is named with both values, and no secret is shown.
func TestChanges(t *testing.T) {
	was, now := Serve(), Serve()
	was.TrustedProxies = []Network{} // no list, as nil is
	if got := Changes(&was, &now); len(got) != 0 {
		t.Errorf("nothing has changed: %v", got)
	}
	was.Tokens = []Token{{Secret: "a-secret-of-the-tests", Project: "p"}}
	now.Tokens = []Token{{Secret: "another-secret-of-the-tests", Project: "p"}, {Secret: "a-secret-of-the-tests", Project: "q"}}
	was.Issuers = []Issuer{{Preset: "development", HS256Key: "a-secret-of-the-tests", Kind: "player"}}
	was.Quotas = []Quota{{Project: "a", Allocations: 5}}
	for _, project := range strings.Split("abcde", "") {
		now.Quotas = append(now.Quotas, Quota{Project: project, Allocations: 5})
	}
	now.Region, now.IdleTimeout, now.AllowOrigins = "eu", time.Minute, []string{"https://a", "https://b"}
	want := []Change{
		{"allow_origins", "[]", `[https://a, https://b]`}, {"region", "default", "eu"},
		{"idle_timeout", "10s", "1m0s"},
		{"tokens", "1: {project: p}", "2: {project: p}, {project: q}"},
		{"issuers", "1: {preset: development, kind: player}", "0"},
		{"quotas", "1", "5: {project: b, allocations: 5}, {project: c, allocations: 5}, {project: d, allocations: 5}, and 1 more"},
	}
	got := Changes(&was, &now)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if strings.Contains(fmt.Sprint(got), "secret-of") {
		t.Errorf("a secret is shown: %v", got)
	}
}

// TestBriefTwins: a change that the print does not show is named.
func TestBriefTwins(t *testing.T) {
	a, b := Quota{Project: "a", Allocations: 1}, Quota{Project: "b", Players: 1}
	token := func(secret Secret) Token { return Token{Secret: secret, Project: "p"} }
	for _, c := range []struct {
		was, now Config
		want     Change
	}{
		{Config{Quotas: []Quota{a, b}}, Config{Quotas: []Quota{b, a}}, Change{"quotas", "2", "2 (in another order)"}},
		{Config{Tokens: []Token{token("x")}}, Config{Tokens: []Token{token("y")}}, Change{"tokens", "1: {project: p}", "1: {project: p} (with another secret)"}},
		{Config{Store: "redis://x"}, Config{Store: "redis://y"}, Change{"store", `"[hidden]"`, `"[hidden]" (with another secret)`}},
	} {
		if got := Changes(&c.was, &c.now); len(got) != 1 || got[0] != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

// TestEveryChange: no setting can change unseen.
func TestEveryChange(t *testing.T) {
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
			if err := parse(field, map[string]string{"Addr": "127.0.0.1:1", "Name": "a.example"}[field.Type().Name()]); err != nil {
				t.Fatalf("%s: %v", s.key, err)
			}
		}
		if got := Changes(&was, &now); len(got) != 1 || got[0].Key != s.key {
			t.Errorf("%s: %v", s.key, got)
		}
		if was.Adopt(&now, []string{s.key}); len(Changes(&was, &now)) != 0 {
			t.Errorf("%s was not taken over", s.key)
		}
	}
}

// TestAdopted: only what is named comes along, with its source.
func TestAdopted(t *testing.T) {
	was := Loaded{Config: Serve(), sources: map[string]string{"workers": "--workers"}}
	read := Loaded{Config: Serve(), sources: map[string]string{"region": "f:1", "log_level": "f:2", "workers": "f:3"}}
	read.Region, read.LogLevel, read.Workers = "eu", "debug", 7
	next := was.Adopted(read, []string{"log_level"})
	if next.Region != "default" || next.LogLevel != "debug" || next.Workers != 0 || was.LogLevel != "info" {
		t.Errorf("region %s, level %s, workers %d; before %s", next.Region, next.LogLevel, next.Workers, was.LogLevel)
	}
	for key, want := range map[string]string{"log_level": "f:2", "region": "default", "workers": "--workers"} {
		if got := next.Source(key); got != want {
			t.Errorf("%s is from %q, want %q", key, got, want)
		}
	}
}

// TestShown: all settings, each with its source, and secrets hidden.
func TestShown(t *testing.T) {
	l := Loaded{Config: Serve(), sources: map[string]string{"region": "f:1", "tokens": "f:2"}}
	l.Region = "eu"
	l.Tokens = []Token{{Secret: "a-secret-of-the-tests", Project: "p", Kind: "server"}}
	shown := map[string]Shown{}
	for _, s := range l.Shown() {
		shown[s.Key] = s
	}
	for _, want := range []Shown{
		{"region", "eu", "f:1"}, {"idle_timeout", "10s", "default"}, {"tokens[0].project", "p", "f:2"},
		{"tokens[0].secret", `"[hidden]"`, "f:2"}, {"tokens[0].kind", "server", "f:2"},
	} {
		if got := shown[want.Key]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if _, ok := shown["tokens[0].player"]; ok {
		t.Error("an empty member is shown")
	}
	if strings.Contains(fmt.Sprintf("%v", l.Shown()), "a-secret") {
		t.Error("the secret is shown")
	}
}

func TestReadSecret(t *testing.T) {
	for text, want := range map[string]string{"abc\n": "abc", "abc\r\n": "abc", "a b": "a b"} {
		got, err := ReadSecret(write(t, text))
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, string(got), err)
		}
	}
	for _, text := range []string{"", "\n", strings.Repeat("x", maxSecretFile+1)} {
		if _, err := ReadSecret(write(t, text)); err == nil {
			t.Errorf("%.10q is taken", text)
		}
	}
}
