package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

const hush = "hush-hush-0123456789"

// TestPrintIsRead: what check prints is a file with the same meaning.
func TestPrintIsRead(t *testing.T) {
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
		t.Errorf("read again:\n%+v\nwant\n%+v", second.Config, first.Config)
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
	l, err := load(t, nil, "-c", write(t, "tokens:\n  - secret: "+hush+"\n    project: p\n    environment: e\n"))
	if err != nil {
		t.Fatal(err)
	}
	if string(l.Tokens[0].Secret) != hush {
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
	if strings.Contains(out.String(), hush) || strings.Contains(out.String(), fmt.Sprintf("%x", hush)) {
		t.Errorf("the secret is in\n%s", out.String())
	}
	if !strings.Contains(out.String(), `secret: "[hidden]"`) {
		t.Errorf("print does not say that there is a secret:\n%s", out.String())
	}
}

// TestSecretNotInErrors: a bad file is quoted in an error, its secrets are not.
func TestSecretNotInErrors(t *testing.T) {
	for _, text := range []string{
		"tokens:\n  - secret: " + hush + "\n    secret_file: x\n",
		"tokens:\n  - secret: [" + hush + "]\n",
		"tokens:\n  - secret: " + hush + "\n    kind: king\n",
	} {
		_, err := load(t, nil, "-c", write(t, text))
		if err == nil || strings.Contains(err.Error(), hush) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
