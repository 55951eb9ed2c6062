package rpc

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func (x *testCluster) revoke(t *testing.T, creds *credentials, certFile string) {
	t.Helper()
	before := creds.current.Load()
	if err := x.ca.Revoke(creds.files.CA, certFile); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, testTimeout, "the list is in force", func() bool { return creds.current.Load() != before })
}

// TestRevokedCaller: a relay that has read the list refuses the next call of a revoked
// API process on an open connection, and its next connection. Others are served.
func TestRevokedCaller(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.creds.every = time.Millisecond
	start(t, x.server.Run)
	x.startDialer(t)
	stolen := x.issue(t, "stolen", Request{Role: RoleAPI, Name: "stolen"})
	creds, err := newCredentials(stolen, RoleAPI, testRelay, x.server.logger)
	if err != nil {
		t.Fatal(err)
	}
	c := x.rawClient(t, &creds.current.Load().pair)
	const describe = `{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`
	if status, body := x.post(t, c, pathDescribe, unkeyed(), describe); status != http.StatusNotFound {
		t.Fatalf("before: %d %s", status, body)
	}
	x.revoke(t, x.server.creds, stolen.Certificate)
	status, body := x.post(t, c, pathDescribe, unkeyed(), describe)
	if status != http.StatusForbidden || !strings.Contains(body, "was revoked") || !strings.Contains(body, "stolen") {
		t.Errorf("on the open connection: %d %s", status, body)
	}
	if status, body := x.post(t, c, pathDescribe, unkeyed(), describe); status != 0 || !strings.Contains(body, "tls: ") {
		t.Errorf("on a new connection: %d %s", status, body)
	}
	testkit.Within(t, testTimeout, "a log line", func() bool { return strings.Contains(x.log.String(), "was revoked") })
	if err := x.calls(t); err != nil {
		t.Errorf("another API process: %v", err)
	}
}

func TestRevokedRelay(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.dialer.creds.every = time.Millisecond
	start(t, x.server.Run)
	x.startDialer(t)
	if err := x.calls(t); err != nil {
		t.Fatal(err)
	}
	x.revoke(t, x.dialer.creds, x.server.creds.files.Certificate)
	if err := x.calls(t); err == nil || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("a call to a revoked relay: %v", err)
	}
}

func TestRevokedNode(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	files := x.issue(t, "api-2", Request{Role: RoleAPI})
	for range 2 { // revoking twice is once
		if err := x.ca.Revoke(files.CA, files.Certificate); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.ca.Revoke(files.CA, x.dialer.creds.files.Certificate); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := readRevocations(text); err != nil || len(all) != 2 {
		t.Errorf("%d certificates are revoked: %v", len(all), err)
	}
	if _, err := NewDialer(DialerConfig{Files: files}); !errors.Is(err, ErrFiles) || !errors.Is(err, ErrRevoked) {
		t.Errorf("NewDialer: %v", err)
	}
}

// TestForeignLists: a list of another authority, or a damaged one, is refused as a whole
// file, and a certificate of another authority cannot be revoked.
func TestForeignLists(t *testing.T) {
	t.Parallel()
	x, foreign := newTestCluster(t), newTestCA(t)
	files := x.dialer.creds.files
	if err := foreign.Revoke(files.CA, files.Certificate); !errors.Is(err, ErrIssue) {
		t.Errorf("a foreign certificate is revoked: %v", err)
	}
	other := writeFiles(t, t.TempDir(), "other", foreign, foreign, Request{Role: RoleAPI})
	if err := foreign.Revoke(other.CA, other.Certificate); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(other.CA)
	if err != nil {
		t.Fatal(err)
	}
	_, list := pem.Decode(text)
	own, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]byte{
		"of another authority": list,
		"damaged":              pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: []byte("no list")}),
	} {
		files.CA = filepath.Join(t.TempDir(), "ca.pem")
		if err := keyfile.Write(files.CA, append(append([]byte(nil), own...), more...)); err != nil {
			t.Fatal(err)
		}
		if _, err := NewDialer(DialerConfig{Files: files}); !errors.Is(err, ErrFiles) || !errors.Is(err, ErrCRL) {
			t.Errorf("a list %s: %v", name, err)
		}
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		t.Error("the file with a list holds no certificate")
	}
}
