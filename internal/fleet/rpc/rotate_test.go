package rpc

import (
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func (x *testCluster) serial(t *testing.T) string {
	t.Helper()
	c := x.apiClient(t)
	res, err := c.Get("https://" + x.server.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.TLS.PeerCertificates[0].SerialNumber.String()
}

func (x *testCluster) calls(t *testing.T) error {
	t.Helper()
	x.dialer.closeIdle()
	_, err := x.remote().Describe(testContext(t), proto.AllocationID{1})
	if errors.Is(err, alloc.ErrNotFound) {
		return nil
	}
	return err
}

// TestCertificatesAreRenewed: files change while both sides run; unusable ones are logged once.
func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.creds.every, x.dialer.creds.every = time.Millisecond, time.Millisecond
	start(t, x.server.Run)
	x.startDialer(t)
	first := x.serial(t)
	relay := Request{Role: RoleRelay, Relay: testRelay}
	x.issue(t, "relay", relay)
	testkit.Within(t, testTimeout, "the new certificate", func() bool { return x.serial(t) != first })
	second := x.serial(t)

	complaints := func() int { return strings.Count(x.log.String(), "level=ERROR") }
	files := x.server.creds.files
	whole, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	before := complaints()
	if err := keyfile.Write(files.Key, whole[:40]); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, testTimeout, "a complaint", func() bool { return complaints() > before })
	if x.serial(t) != second || x.calls(t) != nil {
		t.Errorf("with half a key it shows %s, not %s", x.serial(t), second)
	}
	if n := complaints(); n != before+1 {
		t.Errorf("%d complaints, want 1", n-before)
	}
	x.issue(t, "relay", Request{Role: RoleRelay, Relay: otherRelay})
	testkit.Within(t, testTimeout, "a complaint about the id", func() bool { return strings.Contains(x.log.String(), otherRelay.String()) })
	if err := x.calls(t); err != nil {
		t.Errorf("with another relay's certificate: %v", err)
	}
}

// TestAuthorityIsReplaced replaces the CA of a running fleet in three steps, after
// which the former CA is not trusted.
func TestAuthorityIsReplaced(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.creds.every, x.dialer.creds.every = time.Millisecond, time.Millisecond
	start(t, x.server.Run)
	x.startDialer(t)
	old, young := x.ca, newTestCA(t)
	oldAPI := x.dialer.creds.current.Load().pair
	relay, api := Request{Role: RoleRelay, Relay: testRelay}, Request{Role: RoleAPI}
	nodes := map[string]*credentials{"relay": x.server.creds, "api": x.dialer.creds}
	authorities := func(cas ...*CA) {
		t.Helper()
		trusted := x509.NewCertPool()
		for _, ca := range cas {
			trusted.AddCert(ca.cert)
		}
		for name, creds := range nodes {
			var all []byte
			for i, ca := range cas {
				file := x.dir + "/" + name + "-part" + string(rune('0'+i))
				if err := writePair(ca.cert, ca.key, file, file+"-key"); err != nil {
					t.Fatal(err)
				}
				part, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, part...)
			}
			if err := keyfile.Write(creds.files.CA, all); err != nil {
				t.Fatal(err)
			}
			testkit.Within(t, testTimeout, name+" has read its authorities", func() bool { return creds.current.Load().roots.Equal(trusted) })
		}
	}

	authorities(old, young)
	if err := x.calls(t); err != nil {
		t.Errorf("both CAs: %v", err)
	}
	for name, r := range map[string]Request{"relay": relay, "api": api} {
		issued, err := young.Issue(r)
		if err != nil {
			t.Fatal(err)
		}
		creds := nodes[name]
		if err := issued.Write(creds.files.Certificate, creds.files.Key); err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, testTimeout, name+" has its new certificate", func() bool {
			return creds.current.Load().pair.Leaf.Equal(issued.cert)
		})
		if err := x.calls(t); err != nil {
			t.Errorf("%s has a certificate of the new one: %v", name, err)
		}
	}
	authorities(young)
	if err := x.calls(t); err != nil {
		t.Errorf("the new CA alone: %v", err)
	}
	if status, body := x.post(t, x.rawClient(t, &oldAPI), pathReserveHost, keyed(newKey()), testHostOf4); status != 0 {
		t.Errorf("a certificate of the former authority: %d %s", status, body)
	}
}

func TestExpiryIsAnnounced(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.issue(t, "relay", Request{Role: RoleRelay, Relay: testRelay, Valid: 5 * expiryWarning})
	c := x.server.creds
	c.reload()
	now := c.notAfter().Add(-expiryWarning - time.Hour)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{
		{0, 0}, {2 * time.Hour, 1}, {3 * time.Hour, 1}, {25 * time.Hour, 1}, {27 * time.Hour, 2},
	} {
		c.warn(now.Add(step.after))
		if n := strings.Count(x.log.String(), "expires soon"); n != step.want {
			t.Errorf("after %v: %d warnings, want %d", step.after, n, step.want)
		}
	}
}

// TestShortLivedCertificate checks that a certificate that is renewed by itself is
// announced when less than a quarter of its validity is left.
func TestShortLivedCertificate(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.issue(t, "relay", Request{Role: RoleRelay, Relay: testRelay, Valid: 71 * time.Hour}) // and an hour before its issue
	c := x.server.creds
	c.reload()
	for _, step := range []struct {
		left time.Duration
		want int
	}{{24 * time.Hour, 0}, {19 * time.Hour, 0}, {17 * time.Hour, 1}} {
		c.warn(c.notAfter().Add(-step.left))
		if n := strings.Count(x.log.String(), "expires soon"); n != step.want {
			t.Errorf("%v before its end: %d warnings, want %d", step.left, n, step.want)
		}
	}
}
