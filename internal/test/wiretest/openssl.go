package wiretest

import (
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// OpenSSL is openssl's client of DTLS. It sends what it reads, all that is there as one message, and prints what it
// receives.
type OpenSSL struct {
	In       io.WriteCloser // its end is the end of the client
	Out, Err testkit.LogBuffer
}

// StartOpenSSL starts openssl as the client of an allocation, until the end of the test. The cipher PSK stands for
// all suites with a key of both sides.
func StartOpenSSL(t testing.TB, relay fmt.Stringer, id string, key []byte, cipher string) *OpenSSL {
	t.Helper()
	cmd := exec.Command(testkit.Program(t, "openssl", "openssl"), "s_client", "-dtls1_2", "-quiet", "-no_ign_eof",
		"-connect", relay.String(), "-psk", hex.EncodeToString(key), "-psk_identity", id, "-cipher", cipher)
	s := new(OpenSSL)
	cmd.Stdout, cmd.Stderr = &s.Out, &s.Err
	var err error
	if s.In, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed.
	})
	return s
}

// HasReceived returns a condition: the client has received that.
func (s *OpenSSL) HasReceived(content string) func() bool {
	return func() bool { return strings.Contains(s.Out.String(), content) }
}
