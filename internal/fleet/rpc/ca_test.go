package rpc

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestAuthorityOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	ca := newTestCA(t)
	if err := ca.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{cert, key} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if runtime.GOOS != "windows" && info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, want 0600", name, info.Mode())
		}
	}
	read, err := LoadCA(cert, key)
	if err != nil || !read.cert.Equal(ca.cert) {
		t.Fatalf("read %v: %v", read, err)
	}
	if _, err := read.Issue(Request{Role: RoleAPI}); err != nil {
		t.Error(err)
	}
	other := newTestCA(t)
	for _, names := range [][2]string{{cert, key}, {cert, key + "2"}, {cert + "2", key}} {
		if err := other.Write(names[0], names[1]); !errors.Is(err, fs.ErrExist) {
			t.Errorf("an authority is replaced: %v", err)
		}
	}
	if again, err := LoadCA(cert, key); err != nil || !again.cert.Equal(ca.cert) {
		t.Errorf("after that: %v", err)
	}
	issued, err := ca.Issue(Request{Role: RoleAPI})
	if err != nil {
		t.Fatal(err)
	}
	if err := issued.Write(cert+"3", key+"3"); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(cert+"3", key+"3"); err == nil {
		t.Error("a node's certificate is read as an authority")
	}
	if _, err := LoadCA(cert, key+"3"); err == nil {
		t.Error("an authority with another key is read")
	}
}

func TestIssue(t *testing.T) {
	t.Parallel()
	ca, err := NewCA("test", 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(r Request) *x509.Certificate {
		t.Helper()
		issued, err := ca.Issue(r)
		if err != nil {
			t.Fatal(err)
		}
		return issued.cert
	}
	relay := issue(Request{Role: RoleRelay, Relay: testRelay, Hosts: []string{"relay.example.org", "192.0.2.1", "2001:db8::1"},
		Valid: time.Hour})
	for _, name := range []string{testRelay.String(), "relay.example.org", "192.0.2.1", "[2001:db8::1]"} {
		if err := relay.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if left := time.Until(relay.NotAfter); left > time.Hour || relay.NotBefore.After(time.Now().Add(-backdate/2)) {
		t.Errorf("valid from %v to %v", relay.NotBefore, relay.NotAfter)
	}
	api := issue(Request{Role: RoleAPI, Name: "api 1"})
	if !api.NotAfter.Equal(ca.NotAfter()) || api.Subject.CommonName != "api 1" || len(api.DNSNames)+len(api.IPAddresses) != 0 {
		t.Errorf("until %v, of an authority until %v; %v", api.NotAfter, ca.NotAfter(), api.Subject)
	}
	for _, c := range []*x509.Certificate{relay, api} {
		if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature || len(c.ExtKeyUsage) != 1 {
			t.Errorf("%v: CA %v, usage %v %v", c.Subject, c.IsCA, c.KeyUsage, c.ExtKeyUsage)
		}
	}
	if relay.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || api.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("usage %v and %v", relay.ExtKeyUsage, api.ExtKeyUsage)
	}
	if relay.SerialNumber.Cmp(api.SerialNumber) == 0 {
		t.Error("two certificates have one serial number")
	}
	for name, r := range map[string]Request{
		"no role":                {},
		"an unknown role":        {Role: "root"},
		"a relay without id":     {Role: RoleRelay},
		"an API with a relay id": {Role: RoleAPI, Relay: testRelay},
		"an API with hosts":      {Role: RoleAPI, Hosts: []string{"x"}},
		"an empty host":          {Role: RoleRelay, Relay: testRelay, Hosts: []string{""}},
		"too many hosts":         {Role: RoleRelay, Relay: testRelay, Hosts: strings.Split(strings.Repeat("x,", maxHosts)+"x", ",")},
		"a host that is no name": {Role: RoleRelay, Relay: testRelay, Hosts: []string{"ü"}},
		"a negative validity":    {Role: RoleAPI, Valid: -1},
	} {
		if _, err := ca.Issue(r); !errors.Is(err, ErrIssue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, valid := range map[string]time.Duration{"": 0, "x": -1} {
		if _, err := NewCA(name, valid); !errors.Is(err, ErrIssue) {
			t.Errorf("authority %q for %v: %v", name, valid, err)
		}
	}
}

// TestAuthorityOfRole checks that nodes accept the certificates of an authority for one role in
// that role only, if they trust it besides others.
func TestAuthorityOfRole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var trusted []byte
	authorities := map[Role]*CA{}
	for _, role := range []Role{RoleAPI, RoleRelay} {
		ca, err := NewCA("of "+string(role), 0, role)
		if err != nil {
			t.Fatal(err)
		}
		cert, _, err := ca.PEM()
		if err != nil {
			t.Fatal(err)
		}
		authorities[role], trusted = ca, append(trusted, cert...)
	}
	files := Files{Certificate: filepath.Join(dir, "x.pem"), Key: filepath.Join(dir, "x-key.pem"), CA: filepath.Join(dir, "ca.pem")}
	if err := os.WriteFile(files.CA, trusted, 0o600); err != nil {
		t.Fatal(err)
	}
	for by, ca := range authorities {
		for _, r := range []Request{{Role: RoleAPI}, {Role: RoleRelay, Relay: testRelay}} {
			issued, err := ca.Issue(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := issued.Write(files.Certificate, files.Key); err != nil {
				t.Fatal(err)
			}
			signer, err := NewSigner(files, r.Relay)
			if (err == nil) != (by == r.Role) {
				t.Errorf("an authority for %s makes a certificate for %s: %v", by, r.Role, err)
			}
			if err != nil && !strings.Contains(err.Error(), "incompatible key usage") || signer == nil && err == nil {
				t.Error(err)
			}
		}
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	issued, err := ca.Issue(Request{Role: RoleAPI})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{ca, *ca, issued, &issued} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%x", "%d"} {
			if text := fmt.Sprintf(verb, v); len(text) > 300 {
				t.Errorf("%s prints %d bytes: %.100s", verb, len(text), text)
			}
		}
	}
}
