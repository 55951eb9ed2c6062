//go:build browser

package blackbox

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"os/exec"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/acmetest"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestBrowserAddress: a page hosts and another player of it joins by wss at a relay that has no name, with a certificate for its
// address from an authority. Chromium is told to trust its key, which the test verifies by the authority's roots.
func TestBrowserAddress(t *testing.T) {
	testkit.Program(t, "chromium", "chromium")
	a := acmetest.New(t)
	if !testkit.InNamespace(t) {
		return
	}
	const address = "203.0.113.7"
	place := issuedPlace(t, a, address)
	_, pool := a.Roots()
	cmd := exec.Command(binary, place.command()...)
	cmd.Env = []string{"SSL_CERT_FILE=" + a.File}
	relay := ferrytest.Start(t, cmd)
	var leaf *x509.Certificate
	testkit.NoProblemWithin(t, testkit.WaitLimit, "a certificate for the address", func() string {
		conn, err := tls.Dial("tcp", address+":7777", &tls.Config{RootCAs: pool})
		if err != nil {
			return err.Error() + "\n" + relay.Log.String()
		}
		defer conn.Close()
		leaf = conn.ConnectionState().PeerCertificates[0]
		return ""
	})
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	p := libraryPage(t, "--ignore-certificate-errors-spki-list="+base64.StdEncoding.EncodeToString(sum[:]))
	var code, joiner string
	p.do(&code, "ferry.host", "host", "https://"+address+":7777", token, 4)
	p.do(&joiner, "ferry.join", "joiner", "https://"+address+":7777", token, code)
	p.do(nil, "ferry.say", "joiner", 0, texts)
	p.hears("host", map[string]int{joiner: texts})
}
