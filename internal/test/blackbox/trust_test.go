package blackbox

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTrustedAuthority: every command that calls an API over TLS takes --ca, and without it
// refuses a certificate of an authority that it does not know.
func TestTrustedAuthority(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	f := newPlace(t).serve("--tls-cert", id.cert, "--tls-key", id.key)
	defer f.Stop()
	if !strings.HasPrefix(f.api, "https://") {
		t.Fatalf("the API is at %s", f.api)
	}
	for _, line := range []string{
		"bench --matches 1 --rate 50 --duration 1s --token " + token + " --api " + f.api,
		"ping --token " + token + " " + f.api,
	} {
		for _, trusted := range []bool{true, false} {
			args := strings.Fields(line)
			if trusted {
				args = append([]string{args[0], "--ca", id.cert}, args[1:]...)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
			cancel()
			if trusted && err != nil && !strings.Contains(string(out), "no verdict") {
				t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
			}
			if strings.Contains(string(out), "unknown authority") == trusted {
				t.Errorf("trusted: %v, %s\n%s", trusted, strings.Join(args, " "), out)
			}
		}
	}
}
