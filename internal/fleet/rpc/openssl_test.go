package rpc

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// opensslCommands returns the shell commands of doc.go.
func opensslCommands(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(file.Doc.Text()) {
		text, ok := strings.CutPrefix(line, "\t")
		goesOn := len(lines) > 0 && strings.HasSuffix(lines[len(lines)-1], "\\")
		if ok && (goesOn || strings.HasPrefix(text, "openssl ") || strings.HasPrefix(text, "RELAY=")) {
			lines = append(lines, strings.TrimRight(text, "\n"))
		}
	}
	if n := strings.Count(strings.Join(lines, "\n"), "openssl "); n != 5 {
		t.Fatalf("doc.go has %d calls of openssl, not 5", n)
	}
	return strings.Join(lines, "\n")
}

// TestOpenSSL runs the commands of doc.go, and connects a relay and an API with the
// resulting files.
func TestOpenSSL(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "openssl", "openssl")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-e")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(opensslCommands(t))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	files := func(name string) Files {
		return Files{Certificate: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"), CA: filepath.Join(dir, "ca.pem")}
	}
	x := newTestCluster(t)
	x.server.Close()
	var err error
	x.server, err = NewServer(Config{Addr: loopback, Relay: x.relay, Operator: x.operator, ID: docRelay, Files: files("relay")})
	if err != nil {
		t.Fatal(err)
	}
	x.dialer, err = NewDialer(DialerConfig{Files: files("api")})
	if err != nil {
		t.Fatal(err)
	}
	start(t, x.server.Run)
	x.startDialer(t)
	node := x.node()
	node.Relay = docRelay
	if _, err := x.dialer.Relay(node).ReserveHost(testContext(t), testHost()); err != nil {
		t.Error(err)
	}
	// What the lines make is an authority like ours.
	ca, err := LoadCA(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !ca.cert.MaxPathLenZero {
		t.Error("the authority may make others")
	}
	issued, err := ca.Issue(Request{Role: RoleAPI})
	if err != nil {
		t.Fatal(err)
	}
	api := files("api")
	if err := issued.Write(api.Certificate, api.Key); err != nil {
		t.Fatal(err)
	}
	if err := x.dialer.creds.load(); err != nil {
		t.Fatal(err)
	}
	x.dialer.closeIdle()
	if _, err := x.dialer.Relay(node).Describe(testContext(t), proto.AllocationID{1}); err == nil ||
		!strings.Contains(err.Error(), "not-found") {
		t.Errorf("with a certificate that we issued: %v", err)
	}
}

// docRelay is the relay id in doc.go.
var docRelay = [16]byte{0x6f, 0x1d, 0xe3, 0xa2, 0x5f, 0x34, 0x4a, 0x3e, 0x9d, 0x4c, 0x0a, 0x5f, 0x3a, 0x1b, 0x2c, 0x3d}
