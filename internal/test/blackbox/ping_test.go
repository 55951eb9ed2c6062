package blackbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestPingWSS: with a certificate that the system trusts, the endpoint of wss is
// measured, and with one that it does not know there is none.
func TestPingWSS(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	f := dev(t, "--tls-cert", id.cert, "--tls-key", id.key, "--region", "eu")
	host := strings.TrimPrefix(f.api, "https://")
	for _, c := range []struct {
		trust  string
		target []string
		good   bool
		want   []string
	}{
		{id.cert, []string{"--api", f.api}, false, []string{"eu ", "has no WebSocket URL"}}, // no --advertise-name
		{id.cert, []string{host}, true, []string{host, " ms", " 0%"}},
		{"/nowhere", []string{host}, false, []string{"certificate", "100%", "nothing answered"}},
	} {
		cmd := exec.Command(binary, append([]string{"ping", "--transport", "wss", "--patience", "10s"}, c.target...)...)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+c.trust, "SSL_CERT_DIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.good {
			t.Errorf("%q: %v", cmd.Args, err)
		}
		for _, w := range c.want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%q: %q is missing in\n%s", cmd.Args, w, out)
			}
		}
	}
}
