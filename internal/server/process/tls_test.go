package process

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func newCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool = x509.NewCertPool()
	pool.AddCert(renew(t, cert, key, 1))
	return cert, key, pool
}

func renew(t *testing.T, cert, key string, serial int64) *x509.Certificate {
	t.Helper()
	return renewAs(t, cert, key, serial, func(*x509.Certificate) {})
}

func renewAs(t *testing.T, cert, key string, serial int64, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	c := testkit.SelfSigned(t, func(x *x509.Certificate) { x.SerialNumber = big.NewInt(serial) }, change)
	replace(t, cert, c.PEM)
	replace(t, key, c.KeyPEM)
	return c.Certificate
}

// replace puts a file in the place of another at once.
func replace(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// TestCertificateIsRenewed: the running server shows the new certificate, keeps
// the old one for a broken pair, and complains of that once.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	c := local()
	c.TLSCert, c.TLSKey, _ = newCertificate(t)
	log := new(testkit.LogBuffer)
	o := options(c, Serve)
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	r := startChanged(t, o, func(a *App) { a.operator.status.certificates.every = 5 * time.Millisecond })
	shown := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", r.apiAddr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := shown(); got != 1 {
		t.Fatalf("at first it shows %d", got)
	}
	renew(t, c.TLSCert, c.TLSKey, 2)
	testkit.Within(t, time.Minute, "the new certificate", func() bool { return shown() == 2 })

	before := strings.Count(log.String(), "level=ERROR")
	replace(t, c.TLSKey, []byte("half a ke"))
	testkit.Within(t, time.Minute, "a complaint", func() bool { return strings.Count(log.String(), "level=ERROR") > before })
	complaints := strings.Count(log.String(), "level=ERROR")
	if got := shown(); got != 2 {
		t.Errorf("with a broken pair it shows %d", got)
	}
	renew(t, c.TLSCert, c.TLSKey, 3)
	testkit.Within(t, time.Minute, "the third certificate", func() bool { return shown() == 3 })
	// One line may be about a new certificate beside the broken key.
	if got := strings.Count(log.String(), "level=ERROR"); got > complaints+1 {
		t.Errorf("complaints: %d, then %d\n%s", complaints, got, log.String())
	}
}

// TestBrokenCertificateOnce: what is broken is complained of once, however often
// it is looked at.
func TestBrokenCertificateOnce(t *testing.T) {
	t.Parallel()
	c := local()
	c.TLSCert, c.TLSKey, _ = newCertificate(t)
	log := new(testkit.LogBuffer)
	k, err := loadCertificate(&c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	first := k.current.Load()
	k.reload()
	if log.String() != "" {
		t.Errorf("nothing has changed, and it says %s", log.String())
	}
	for i, breaking := range []func(){
		func() { replace(t, c.TLSCert, []byte("?")) },
		func() { os.Remove(c.TLSKey) },
	} {
		breaking()
		for range 3 {
			k.reload()
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != i+1 || k.current.Load() != first {
			t.Errorf("%d complaints after %d faults\n%s", n, i+1, log.String())
		}
	}
	renew(t, c.TLSCert, c.TLSKey, 2)
	k.reload()
	if got := k.current.Load().Leaf.SerialNumber.Int64(); got != 2 || !strings.Contains(log.String(), "read again") {
		t.Errorf("certificate %d\n%s", got, log.String())
	}
}
