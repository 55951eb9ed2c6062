package blackbox

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/acmetest"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestServeAddress: on a machine without a name, a file with its address, acme and a token is a public relay. Players that
// verify the certificate for the address connect by wss, Unity's native client among them, and by DTLS. A process that
// starts after a crash needs no authority. check looks at port 80, and serve runs without it.
func TestServeAddress(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string][]string{"IPv4": {"203.0.113.7"}, "both": {"203.0.113.7", "2001:db8::7"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := acmetest.New(t)
			if !testkit.InNamespace(t) {
				return
			}
			place := issuedPlace(t, a, addresses...)
			roots, pool := a.Roots()
			trusted := filepath.Join(t.TempDir(), "roots.pem")
			if err := os.WriteFile(trusted, roots, 0o600); err != nil {
				t.Fatal(err)
			}
			if len(addresses) > 1 {
				place.settle("udp: ['0.0.0.0:7777', '[::]:7777']\nhttp: '[::]:7777'\n")
			}
			command := func(trusted string, args ...string) *exec.Cmd {
				cmd := exec.Command(binary, args...)
				cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FERRY_") })
				cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+trusted)
				return cmd
			}
			serve := func() *ferrytest.Process { return ferrytest.Start(t, command(a.File, place.command()...)) }
			play := func(relay *ferrytest.Process) {
				t.Helper()
				for _, ip := range addresses {
					url := "https://" + net.JoinHostPort(ip, "7777")
					testkit.NoProblemWithin(t, testkit.WaitLimit, "matches at "+url, func() string {
						out, err := command(trusted, "ping", url, "--token", token, "--transport", "udp,dtls,wss").CombinedOutput()
						if err != nil {
							return fmt.Sprintf("%v\n%s\n%s", err, out, relay.Log.String())
						}
						return ""
					})
				}
			}
			relay := serve()
			play(relay)
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
			f := &ferry{relay, t, "https://" + addresses[0] + ":7777", relay.Admin, relay.UDP, token, &http.Client{Transport: transport}}
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				host, code := f.allocate(4)
				host.HostConnectionData = host.ConnectionData
				id := identity{name: addresses[0], pool: pool}
				dialNative(t, id, addresses[0]+":7777", version, host)
				joined := f.join(code)
				dialNative(t, id, addresses[0]+":7777", version, joined).connect(joined)
			}
			transport.CloseIdleConnections()

			a.Stop()
			if err := relay.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			play(serve())
		})
	}
}

// issuedPlace starts an authority, and returns a place with acme for addresses that this namespace gets.
func issuedPlace(t *testing.T, a *acmetest.Authority, addresses ...string) place {
	t.Helper()
	testkit.IP(t, "link set lo up")
	for _, ip := range addresses {
		testkit.IP(t, "addr add "+ip+" dev lo")
	}
	a.HTTPPort = 80
	a.Start()
	p := newPlace(t)
	p.settle(fmt.Sprintf("advertise: [%s]\nacme: true\nacme_server: %s\n", strings.Join(addresses, ", "), a.URL))
	return p
}
