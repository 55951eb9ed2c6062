//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const signInToken = "laboratory-admin-token-0123456789"

// maxSignInLines is how many lines of the log and the audit log failed sign-ins may cost in the
// first minute.
const maxSignInLines = 2

// TestAttackSignIn verifies that failed sign-ins from the address of an operator, as through a
// tunnel or a NAT, neither fill the log nor refuse the operator.
func TestAttackSignIn(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) {
		file := filepath.Join(c.Dir, "admin-token")
		if err := os.WriteFile(file, []byte(signInToken), 0o600); err != nil {
			t.Fatal(err)
		}
		const issuer = "http://127.0.0.1:9" // It does not have to answer.
		c.Flags = []string{
			"--admin-token-file", file, "--audit-file", filepath.Join(c.Dir, "audit.log"),
			"--admin-oidc-issuer", issuer, "--admin-oidc-client-id", "ferry", "--admin-oidc-operators", "ann@example.org",
		}
	})
	browser := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: l.net.Relay.Dial, MaxIdleConnsPerHost: 64}}
	call := func(ctx context.Context, method, path, body string) (int, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+adminAddr+path, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		resp, err := browser.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	var failed atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), *attackDuration)
	defer cancel()
	for _, a := range []struct{ method, path, body string }{
		{"POST", "/console/login", `{"token":"laboratory-admin-token-0123456780"}`},
		{"GET", "/console/oidc/callback?state=x&code=y", ""},
		{"DELETE", "/console/login", ""},
		{"POST", "/console/elsewhere?by=stranger", ""},
	} {
		for range 4 {
			l.background(func(ctx context.Context) {
				for ctx.Err() == nil {
					if _, err := call(ctx, a.method, a.path, a.body); err == nil {
						failed.Add(1)
					}
				}
			})
		}
	}
	tried, refused := 0, 0
	for ; ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		status, err := call(t.Context(), "POST", "/console/login", `{"token":"`+signInToken+`"}`)
		if err != nil {
			t.Fatal(err)
		}
		if tried++; status != http.StatusOK {
			refused++
		}
	}
	lines := 0
	for _, name := range []string{"ferry.log", "audit.log"} {
		text, err := os.ReadFile(filepath.Join(l.cfg.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "/console/") && !strings.Contains(line, `POST /console/login","status":200`) ||
				strings.Contains(line, "refused") {
				lines++
			}
		}
	}
	if failed.Load() < 1000 {
		t.Errorf("%d requests: this run decides nothing", failed.Load())
	}
	recordAttack(t, attackResult{
		attack: "failed sign-ins", rate: perSecond(float64(failed.Load())/attackDuration.Seconds(), "requests"),
		honest: fmt.Sprintf("%d of %d sign-ins refused, %d lines of log", refused, tried, lines), damage: refused > 0 || lines > maxSignInLines,
	})
}
