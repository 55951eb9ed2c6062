package process

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	ws "github.com/coder/websocket"
	"go.uber.org/zap"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

var badCertificates = []struct {
	reason, text string
	change       func(*x509.Certificate)
}{
	{metrics.CertificateExpired, "expired at", func(x *x509.Certificate) { x.NotAfter = time.Now().Add(-time.Minute) }},
	{metrics.CertificateNotYetValid, "is not valid before", func(x *x509.Certificate) {
		x.NotBefore, x.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	}},
	{metrics.CertificateOtherName, "is not for the name relay.example.org (advertise_name), but for other.example.org, 127.0.0.1",
		func(x *x509.Certificate) {
			x.DNSNames = []string{"other.example.org"}
		}},
}

// TestBadCertificates: for a certificate that is expired, not yet valid, or for another
// name, check warns, and a process that starts with it, or reads it while it runs, logs it
// once and shows it in the metrics until another one is there.
func TestBadCertificates(t *testing.T) {
	t.Parallel()
	for _, bad := range badCertificates {
		for _, reload := range []bool{false, true} {
			t.Run(fmt.Sprint(bad.reason, " by reload ", reload), func(t *testing.T) {
				t.Parallel()
				c := local()
				c.TLSCert, c.TLSKey, _ = newCertificate(t)
				c.AdvertiseName = config.Name{Host: "relay.example.org"}
				if w := Warnings(c, Serve); len(w) != 0 {
					t.Errorf("warnings of a valid one: %q", w)
				}
				if !reload {
					renewAs(t, c.TLSCert, c.TLSKey, 2, bad.change)
					if err := Check(c, Serve); err != nil {
						t.Errorf("check refuses it: %v", err)
					}
					if w := Warnings(c, Serve); len(w) != 1 || !strings.Contains(w[0], bad.text) || !strings.HasPrefix(w[0], "tls_cert: ") {
						t.Errorf("warnings: %q", w)
					}
				}
				log := new(testkit.LogBuffer)
				o := options(c, Serve)
				o.Logger = slog.New(slog.NewTextHandler(log, nil))
				r := startChanged(t, o, func(a *App) {
					a.operator.status.certificates.every = 5 * time.Millisecond
				})
				if reload {
					renewAs(t, c.TLSCert, c.TLSKey, 2, bad.change)
				}
				testkit.Eventually(t, "it is shown", func() bool { return r.operator.status.certificates.metrics()[c.TLSCert].Fault == bad.reason })
				testkit.Eventually(t, "it is logged", func() bool {
					return strings.Contains(log.String(), "level=ERROR") && strings.Contains(log.String(), bad.text)
				})
				conn, _, err := ws.Dial(t.Context(), fmt.Sprintf("wss://%s/", r.apiAddr()),
					&ws.DialOptions{HTTPClient: clientThatTrusts(t, c.TLSCert, "relay.example.org")})
				if err == nil {
					conn.CloseNow()
					t.Error("a client accepts it")
				}
				problem := false
				for _, x := range r.operator.status.conditions() {
					problem = problem || x.Name == "certificate" && x.State == "problem" && strings.Contains(x.Text, bad.text)
				}
				if !problem {
					t.Errorf("the console does not show it: %v", r.operator.status.conditions())
				}
				renew(t, c.TLSCert, c.TLSKey, 3)
				testkit.Eventually(t, "it is valid again", func() bool {
					return r.operator.status.certificates.metrics()[c.TLSCert].Fault == "" && strings.Contains(log.String(), "valid again")
				})
				if n := strings.Count(log.String(), "is refused by clients"); n != 1 {
					t.Errorf("logged %d times", n)
				}
			})
		}
	}
}

// TestBadChain: an intermediate certificate that has expired is a fault as well.
func TestBadChain(t *testing.T) {
	t.Parallel()
	cert, key, _ := newCertificate(t)
	good, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	old := renewAs(t, cert, key, 2, badCertificates[0].change)
	good.Certificate = append(good.Certificate, old.Raw)
	if f := certificateFaultOf(&good, "relay.example.org", time.Now()); f.reason != metrics.CertificateExpired ||
		!strings.Contains(f.text, "certificate 2 of its chain") {
		t.Errorf("%+v", f)
	}
	// A clock that jumps makes a good one bad, and good again.
	good.Certificate = good.Certificate[:1]
	for ahead, want := range map[time.Duration]string{0: "", 30 * 24 * time.Hour: metrics.CertificateExpired} {
		if f := certificateFaultOf(&good, "relay.example.org", time.Now().Add(ahead)); f.reason != want {
			t.Errorf("%v ahead: %+v", ahead, f)
		}
	}
}

// TestClusterCertificateWarning: check warns of the fleet's certificate too.
func TestClusterCertificateWarning(t *testing.T) {
	t.Parallel()
	c := local()
	c.ClusterCert, c.ClusterKey, _ = newCertificate(t)
	renewAs(t, c.ClusterCert, c.ClusterKey, 2, badCertificates[0].change)
	if w := Warnings(c, Relay); len(w) != 1 || !strings.Contains(w[0], "cluster_cert: "+c.ClusterCert+" expired") {
		t.Errorf("%q", w)
	}
	if err := os.Remove(c.ClusterKey); err != nil {
		t.Fatal(err)
	}
	if w := Warnings(c, Relay); len(w) != 0 {
		t.Errorf("%q", w)
	}
}

// TestBadACMECertificate: the faults of certificates by ACME are known too.
func TestBadACMECertificate(t *testing.T) {
	t.Parallel()
	cert, key, _ := newCertificate(t)
	log := new(testkit.LogBuffer)
	k := &certificates{log: slog.New(slog.NewTextHandler(log, nil)), acme: &acmeCertificates{names: []string{"relay.example.org"}}}
	known := make(map[string]certificateFault)
	k.logFaults(known)
	if got := k.metrics()["relay.example.org"].Fault; got != metrics.CertificateMissing || log.String() != "" {
		t.Errorf("none: %q, %s", got, log)
	}
	var manager *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return manager, nil }, Logger: zap.NewNop(),
	})
	defer cache.Stop()
	manager = certmagic.New(cache, certmagic.Config{Logger: zap.NewNop(), Storage: &certmagic.FileStorage{Path: t.TempDir()}})
	k.acme.cache.Store(cache)
	for _, bad := range badCertificates[:2] { // The library chooses by the name.
		renewAs(t, cert, key, 2, bad.change)
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manager.CacheUnmanagedTLSCertificate(t.Context(), pair, nil); err != nil {
			t.Fatal(err)
		}
		k.logFaults(known)
		if got := k.metrics()["relay.example.org"].Fault; got != bad.reason || !strings.Contains(log.String(), bad.text) {
			t.Errorf("%s: %q, %s", bad.reason, got, log)
		}
	}
}

// clientThatTrusts returns a client that trusts a certificate, if it is for the name.
func clientThatTrusts(t *testing.T, cert, name string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
