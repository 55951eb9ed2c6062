//go:build mutants

package mutants

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

const (
	// testTimeout is what go test gives a test. Killers take seconds.
	testTimeout = 90 * time.Second
	// runTimeout is when go test itself is given up: it has to compile first,
	// on a machine that may be busy.
	runTimeout = 10 * time.Minute
)

// verdict is what became of a test.
type verdict int

const (
	passed verdict = iota
	failed
	skipped
	absent    // no test has that name
	unbuilt   // it does not compile
	timedOut  // it ran into testTimeout
	broken    // anything else: a crash outside of the test, a signal, no go command
	abandoned // the whole run ended before
)

func (v verdict) String() string {
	return [...]string{
		"passed", "failed", "was skipped", "is not there", "did not compile", "timed out", "broke", "was abandoned",
	}[v]
}

// pattern returns the -run pattern of exactly this test.
func (k killer) pattern() string {
	parts := strings.Split(k.test, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	return strings.Join(parts, "/")
}

// run runs the test, with an overlay if one is named, and returns its output.
func (k killer) run(ctx context.Context, root, overlay string) (verdict, string) {
	limited, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	args := []string{"test", "-vet=off", "-count=1", "-v", "-timeout", testTimeout.String(), "-run", k.pattern()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(append(args, k.pkg), strings.Fields(k.args)...)
	cmd := exec.CommandContext(limited, "go", args...)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return abandoned, string(out)
	}
	return k.judge(string(out), err), string(out)
}

// judge reads what go test -v says.
func (k killer) judge(out string, err error) verdict {
	said := func(word string) bool {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\s*--- %s: %s`, word, regexp.QuoteMeta(k.test)))
		return line.MatchString(out)
	}
	var exit *exec.ExitError
	switch {
	case strings.Contains(out, "[build failed]"), strings.Contains(out, "[setup failed]"):
		return unbuilt
	case strings.Contains(out, "panic: test timed out after"):
		return timedOut
	case errors.As(err, &exit) && said("FAIL"):
		return failed
	case err != nil:
		return broken
	case said("SKIP"):
		return skipped
	case said("PASS"):
		return passed
	}
	return absent
}

// tail returns the end of an output, which says why.
func tail(out string) string {
	const keep = 1500
	if len(out) > keep {
		return "…" + out[len(out)-keep:]
	}
	return out
}
