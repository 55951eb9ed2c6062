package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/config"
)

// TestCountsOfPlayers: the metrics have what the settings ask for and nothing
// else, also after a process has been told to ask for it.
func TestCountsOfPlayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := local()
	r := start(t, options(c, Serve))
	_, before := fetch(t, r.AdminURL()+"/metrics")
	wants := func(text string, want map[string]bool) {
		t.Helper()
		for line, there := range want {
			if strings.Contains(text, "\n"+line) != there {
				t.Errorf("%q is there: %v, want %v", line, !there, there)
			}
		}
	}
	wants(before, map[string]bool{
		`ferry_quota_refused_total{limit="players"} 0`: true,
		"ferry_webhook_": false, "ferry_admission_": false, "ferry_jwks_": false,
	})
	// Nothing answers there, and nothing has to.
	c.AdmissionURL = "https://127.0.0.1:1/"
	c.WebhookURL, c.WebhookSecretFile = "https://127.0.0.1:1/", file
	c.Issuers = []config.Issuer{{
		Issuer: "https://id.example.org", Audience: []string{"game"}, JWKSURL: "https://127.0.0.1:1/jwks",
		Project: "p", Environment: "e",
	}}
	next, _, err := r.players.nextPolicy(&c)
	if err != nil {
		t.Fatal(err)
	}
	r.players.setPolicy(next)
	_, after := fetch(t, r.AdminURL()+"/metrics")
	wants(after, map[string]bool{
		"ferry_webhook_waiting 0": true, `ferry_webhook_dropped_total{reason="full"} 0`: true,
		`ferry_admission_questions_total{answer="allowed"} 0`: true,
		`ferry_jwks_documents{state="missing"} 1`:             true,
	})
}
