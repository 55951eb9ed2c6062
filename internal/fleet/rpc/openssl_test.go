package rpc

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestOpenSSL runs the commands of testdata/openssl.sh, and connects a relay and an API with
// the resulting files.
func TestOpenSSL(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "openssl", "openssl")
	dir := t.TempDir()
	script, err := filepath.Abs("testdata/openssl.sh")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Input(t, script)
	cmd := exec.CommandContext(t.Context(), "sh", "-e", script)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	files := func(name string) Files {
		return Files{Certificate: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"), CA: filepath.Join(dir, "ca.pem")}
	}
	x := newTestCluster(t)
	x.server.Close()
	x.server, err = NewServer(Config{Addr: loopback, Relay: x.relay, Operator: x.operator, ID: scriptRelay, Files: files("relay")})
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
	node.Relay = scriptRelay
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

// scriptRelay is the relay id in testdata/openssl.sh.
var scriptRelay = [16]byte{0x6f, 0x1d, 0xe3, 0xa2, 0x5f, 0x34, 0x4a, 0x3e, 0x9d, 0x4c, 0x0a, 0x5f, 0x3a, 0x1b, 0x2c, 0x3d}
