package process

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/server/config"
)

func TestTokenKind(t *testing.T) {
	t.Parallel()
	for kind, server := range map[string]bool{"player": false, "server": true} {
		if token, err := apiToken(&config.Token{Kind: kind}); err != nil || token.Server != server {
			t.Errorf("kind %q: %v, %v", kind, token, err)
		}
	}
	for _, kind := range []string{"", "Player", "admin"} {
		if _, err := apiToken(&config.Token{Kind: kind}); err == nil {
			t.Errorf("kind %q: no error", kind)
		}
	}
}
