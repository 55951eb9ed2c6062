package main

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/urfave/cli/v3"
)

func helpOf(t *testing.T, line string) string {
	t.Helper()
	var out strings.Builder
	if code := run(t.Context(), strings.Fields("ferry "+line), nil, &out, &out); code != exitOK {
		t.Fatalf("%s: exit code %d: %s", line, code, out.String())
	}
	return out.String()
}

// TestHelpWidth: no line of options is wider than the window, whatever its width.
func TestHelpWidth(t *testing.T) {
	t.Parallel()
	var all func(cmd *cli.Command)
	count := 0
	all = func(cmd *cli.Command) {
		count++
		for _, width := range []int{40, 60, 80, 110} {
			for _, f := range cmd.Flags {
				o, ok := describe(cmd, f)
				if !ok {
					continue
				}
				for line := range strings.Lines(entry(o.name, o.text, width, helpColumn)) {
					words := strings.Fields(line)
					if len(strings.TrimRight(line, "\n")) > width && len(words) > 1 && !strings.HasPrefix(words[0], "-") {
						t.Errorf("%s, width %d: %q", cmd.FullName(), width, line)
					}
				}
				if strings.Contains(o.text, "`") || strings.Contains(o.text, "0s)") && strings.Contains(o.text, "m0s") ||
					strings.Contains(o.name, " int") {
					t.Errorf("%s: %+v", cmd.FullName(), o)
				}
			}
		}
		for _, c := range cmd.Commands {
			all(c)
		}
	}
	all(streams{}.root())
	if count < 20 {
		t.Errorf("%d commands", count)
	}
}

// TestHelpAll: the short help has the common options that apply, and says how many more there
// are; the long one has all, by group.
func TestHelpAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, has, hasNot string }{
		{"serve --help", "--udp HOST:PORT,... --tls-cert --state-dir --acme --help-all", "--cluster --store --receive-delay"},
		{"serve --help-all", "--udp --receive-delay --max-websockets OPTIONS,_limits:", "--cluster --store --region-description"},
		{"dev --help", "--udp --advertise --log-level", "--cluster --store --acme --state-dir --joiner-bytes"},
		{"dev --help-all", "--udp --receive-delay", "--cluster --store --acme --state-dir --joiner-bytes --drain-timeout"},
		{"relay --help", "--cluster --store --udp", "--receive-delay --quotas"},
		{"api --help", "--store --http", "--udp --max-allocations"},
		{"check --help-all", "--udp --store --cluster --machine", ""},
	} {
		text := helpOf(t, c.line)
		for _, want := range strings.Fields(c.has) {
			if !strings.Contains(text, strings.ReplaceAll(want, "_", " ")) {
				t.Errorf("%s: %s is missing in\n%s", c.line, want, text)
			}
		}
		for _, not := range strings.Fields(c.hasNot) {
			if strings.Contains(text, "\n   "+not+" ") {
				t.Errorf("%s has %s", c.line, not)
			}
		}
	}
	if text := helpOf(t, "dev --help"); !strings.Contains(text, "more options: ferry dev --help-all") {
		t.Errorf("dev --help:\n%s", text)
	}
	if text := helpOf(t, "dev --help-all"); strings.Contains(text, "more options") ||
		!strings.Contains(strings.Join(strings.Fields(text), " "), "(default 10m; $FERRY_BIND_TIMEOUT)") {
		t.Errorf("dev --help-all:\n%s", text)
	}
	if text := helpOf(t, "serve --help"); strings.Count(text, "\n") > 50 {
		t.Errorf("serve --help does not fit one screen:\n%s", text)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text         string
		width, first int
		want         string
	}{
		{"one two three", 7, 0, "one two\n  three\n"},
		{"one two three", 100, 3, "   one two three\n"},
		{"a-word-that-is-longer-than-the-line end", 10, 0, "a-word-that-is-longer-than-the-line\n  end\n"},
		{"", 10, 2, "  \n"},
	} {
		if got := ctl.Wrap(c.text, c.width, c.first, 2); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	if got := wrapText("a b\nc\n\nExamples:\n   keep  this", 80); got != "   a b c\n\n   Examples:\n      keep  this\n" {
		t.Errorf("%q", got)
	}
}
