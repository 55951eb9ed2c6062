package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/test/acmetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// issuedConfig returns settings with a certificate of a for advertise_name or, without it, for the addresses,
// where the relay then listens. The library has challenges by name for the whole process: each test has names of
// its own.
func issuedConfig(t *testing.T, a *acmetest.Authority, name string, addresses ...string) config.Config {
	t.Helper()
	c := local()
	c.ACME, c.ACMEServer, c.StateDir = true, a.URL, t.TempDir()
	if err := c.AdvertiseName.UnmarshalText([]byte(name)); err != nil {
		t.Fatal(err)
	}
	if len(addresses) > 0 {
		c.UDP = nil
	}
	for _, ip := range addresses {
		c.UDP = append(c.UDP, addr(net.JoinHostPort(ip, "0")))
		c.HTTP = addr(net.JoinHostPort(ip, "0"))
	}
	if len(addresses) > 1 {
		c.HTTP = addr("[::]:0")
	}
	return c
}

// shownIfFailed returns a log that a failed test shows with that of the authority.
func shownIfFailed(t *testing.T, a *acmetest.Authority) *testkit.LogBuffer {
	log := new(testkit.LogBuffer)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", log, a.Log())
		}
	})
	return log
}

// startIssued starts a process whose challenges a expects.
func startIssued(t *testing.T, a *acmetest.Authority, c config.Config, log *testkit.LogBuffer, change ...func(*acmeCertificates)) running {
	t.Helper()
	o := options(c, Serve)
	if log != nil {
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	return startChanged(t, o, func(app *App) {
		s := app.operator.status.certificates.acme
		s.issuer.TrustedRoots, s.issuer.AltHTTPPort = a.Certificate.Pool(), a.HTTPPort
		for _, f := range change {
			f(s)
		}
	})
}

// presented returns the certificate for a client that verifies it for a name or an address, and connects to
// the host.
func (d dialler) presented(host, name string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: d.pool}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(d.apiAddr().Port()))))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// awaits returns the certificate for a name or an address of this machine.
func (d dialler) awaits(t *testing.T, name string) (c *x509.Certificate) {
	t.Helper()
	host := name
	if _, err := netip.ParseAddr(name); err != nil {
		host = "127.0.0.1"
	}
	testkit.NoProblemWithin(t, time.Minute, "a certificate for "+name, func() (problem string) {
		var err error
		if c, err = d.presented(host, name); err != nil {
			return err.Error()
		}
		return ""
	})
	return c
}

func (d dialler) urlAt(name string) string {
	return "https://" + net.JoinHostPort(name, strconv.Itoa(int(d.apiAddr().Port())))
}

// TestACMECertificates: certificates for names and addresses of both families are obtained without a request
// of a client. Players call the API and connect by wss, where they verify the certificate for what is advertised, and
// by DTLS. A process that starts again, and one beside it, use the certificates without the authority.
func TestACMECertificates(t *testing.T) {
	t.Parallel()
	byALPN := func(port int) func(*acmeCertificates) {
		return func(s *acmeCertificates) {
			s.issuer.DisableHTTPChallenge, s.issuer.DisableTLSALPNChallenge, s.issuer.AltTLSALPNPort = true, false, port
		}
	}
	var six sync.Mutex // ::1 is one address, and the library has challenges by name.
	for _, row := range []struct {
		name  string
		names []string
		alpn  bool
		short bool // six days
	}{
		{"a name", []string{"http.example.org"}, false, false},
		{"a name, by TLS-ALPN-01", []string{"alpn.example.org"}, true, false},
		{"a name in IDNA", []string{"xn--bcher-kva.example.org"}, false, false},
		{"IPv4", []string{"127.1.0.1"}, false, true},
		{"IPv4, by TLS-ALPN-01", []string{"127.1.0.2"}, true, true},
		{"IPv6", []string{"::1"}, false, true},
		{"IPv6, by TLS-ALPN-01", []string{"::1"}, true, true},
		{"both families", []string{"127.1.0.3", "::1"}, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if slices.Contains(row.names, "::1") {
				six.Lock()
				t.Cleanup(six.Unlock) // after the process has ended
			}
			a := acmetest.New(t)
			a.Start()
			var c config.Config
			if strings.HasSuffix(row.names[0], ".org") {
				c = issuedConfig(t, a, row.names[0])
			} else {
				c = issuedConfig(t, a, "", row.names...)
			}
			var change []func(*acmeCertificates)
			if row.alpn {
				c.HTTP = addr(net.JoinHostPort(c.HTTP.Addr().String(), strconv.Itoa(a.TLSPort)))
				change = append(change, byALPN(a.TLSPort))
			}
			_, pool := a.Roots()
			log := shownIfFailed(t, a)
			d := dialler{running: startIssued(t, a, c, log, change...), pool: pool}
			first := make(map[string]*x509.Certificate)
			for _, name := range row.names {
				x := d.awaits(t, name)
				if got := x.NotAfter.Sub(x.NotBefore); row.short && got > 161*time.Hour {
					t.Errorf("%s: a certificate for %v", name, got)
				}
				first[name] = x
			}
			for _, name := range []string{"other.example.org", "x"} {
				if x, err := d.presented(d.apiAddr().Addr().String(), name); err == nil {
					t.Errorf("%s is shown %v", name, x.DNSNames)
				}
			}
			d.plays(t, row.names)
			again := c
			if row.alpn {
				again.HTTP = addr(net.JoinHostPort(c.HTTP.Addr().String(), "0"))
			}
			a.Stop() // It need not be asked.
			beside := dialler{running: startIssued(t, a, again, nil), pool: pool}
			d.cancel()
			if err := <-d.ended; err != nil {
				t.Error(err)
			}
			next := dialler{running: startIssued(t, a, c, nil, change...), pool: pool}
			for _, name := range row.names {
				for _, d := range []dialler{beside, next} {
					if x := d.awaits(t, name); !x.Equal(first[name]) {
						t.Errorf("%s: another certificate", name)
					}
				}
			}
			if info, err := os.Stat(filepath.Join(c.StateDir, acmeDir)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the directory: %v, %v", info, err)
			}
		})
	}
}

// plays calls the API by each name, and plays a match by wss and DTLS at the advertised endpoints.
func (d dialler) plays(t *testing.T, names []string) {
	t.Helper()
	var wss []string
	var a api.Allocation
	for _, name := range names {
		calls := d.calls()
		calls.BaseURL = d.urlAt(name)
		var err error
		if a, err = calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wss = append(wss, strings.Replace(d.urlAt(name), "https", "wss", 1)+"/")
	}
	var advertised []string
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == "wss" {
			advertised = append(advertised, "wss://"+net.JoinHostPort(e.Host, strconv.Itoa(e.Port))+"/")
		}
	}
	if fmt.Sprint(advertised) != fmt.Sprint(wss) {
		t.Errorf("players are told %v, want %v", advertised, wss)
	}
	for _, url := range advertised {
		conn, err := d.webSocket(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		conn.CloseNow()
	}
	m := d.match(t, names[0])
	m.player.tell(m.host, "by DTLS")
	m.host.tell(m.player, "by wss")
}

// acmeMatch is a match of a host by wss and a player by DTLS.
type acmeMatch struct {
	calls        *api.Client
	code         string
	host, player *player
}

// match begins one, by calls of the API at a name.
func (d dialler) match(t *testing.T, name string) (m acmeMatch) {
	t.Helper()
	m.calls = d.calls()
	m.calls.BaseURL = d.urlAt(name)
	a, err := m.calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if err != nil {
		t.Fatal(err)
	}
	a.HostConnectionData = a.ConnectionData
	m.host = d.join(t, a, "wss")
	if m.code, err = m.calls.JoinCode(t.Context(), a.AllocationID); err != nil {
		t.Fatal(err)
	}
	b, err := m.calls.Join(t.Context(), m.code)
	if err != nil {
		t.Fatal(err)
	}
	m.player = d.join(t, b, "dtls")
	m.player.connect(m.host)
	return m
}

// TestACMEBehindNAT: a client that connects to an address sends no name. It gets the certificate for the
// advertised address of the family, though the connection arrives at another address of this machine.
func TestACMEBehindNAT(t *testing.T) {
	t.Parallel()
	a := acmetest.New(t)
	a.Start()
	_, pool := a.Roots()
	c := issuedConfig(t, a, "")
	c.HTTP, c.Advertise = addr("0.0.0.0:0"), []config.Host{host(t, "127.2.0.7")}
	d := dialler{running: startIssued(t, a, c, nil), pool: pool}
	d.awaits(t, "127.2.0.7")
	if _, err := d.presented("127.0.0.1", "127.2.0.7"); err != nil {
		t.Error(err)
	}
}

func TestACMENameAt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ names, local, want string }{
		{"203.0.113.7", "10.0.0.5", "203.0.113.7"},
		{"203.0.113.7", "2001:db8::5", "203.0.113.7"},
		{"203.0.113.7 2001:db8::7", "2001:db8::5", "2001:db8::7"},
		{"203.0.113.7 2001:db8::7", "::ffff:10.0.0.5", "203.0.113.7"},
		{"relay.example.org", "10.0.0.5", "relay.example.org"},
	} {
		if got := acmeNameAt(strings.Fields(c.names), netip.MustParseAddr(c.local)); got != c.want {
			t.Errorf("%v: %s, want %s", c, got, c.want)
		}
	}
}

// TestACMERenewal: a certificate is renewed while the process runs. New connections get the new one, and
// players in a match notice nothing.
func TestACMERenewal(t *testing.T) {
	t.Parallel()
	a := acmetest.New(t)
	a.Start()
	_, pool := a.Roots()
	log := new(testkit.LogBuffer)
	d := dialler{pool: pool, running: startIssued(t, a, issuedConfig(t, a, "", "127.3.0.1"), log, func(s *acmeCertificates) {
		s.every, s.renewal = 300*time.Millisecond, 1-1e-9
	})}
	first := d.awaits(t, "127.3.0.1")
	m := d.match(t, "127.3.0.1")
	testkit.Eventually(t, "another certificate", func() bool {
		x, err := d.presented("127.3.0.1", "127.3.0.1")
		return err == nil && !x.Equal(first)
	})
	m.player.tell(m.host, "by DTLS")
	m.host.tell(m.player, "by wss")
	b, err := m.calls.Join(t.Context(), m.code)
	if err != nil {
		t.Fatal(err)
	}
	another := d.join(t, b, "wss")
	another.connect(m.host)
	another.tell(m.host, "by wss, with another certificate")
	testkit.Eventually(t, "it is logged", func() bool { return strings.Contains(log.String(), "renewal=true") })
}

var long = flag.Bool("long", false, "wait for what takes a minute")

// TestACMEAuthorityDown: without the authority, the process is ready, and players use UDP. The metrics and the log say
// what is missing. When it is up, the certificate comes without a restart: the library asks after one minute, and two.
func TestACMEAuthorityDown(t *testing.T) {
	t.Parallel()
	a := acmetest.New(t)
	log := shownIfFailed(t, a)
	c := issuedConfig(t, a, "", "127.4.0.1")
	r := startIssued(t, a, c, log)
	testkit.Eventually(t, "the log says why", func() bool { return strings.Contains(log.String(), "connection refused") })
	d := dialler{running: r, pool: x509.NewCertPool()}
	if _, err := d.presented("127.4.0.1", "127.4.0.1"); err == nil {
		t.Error("there is a certificate")
	}
	if got := r.operator.status.certificates.metrics()["127.4.0.1"]; got.Fault != metrics.CertificateMissing {
		t.Errorf("the metrics say %+v", got)
	}
	if n := r.Stats().Allocations; n != 0 || len(r.Listeners()) < 2 {
		t.Errorf("%d allocations", n)
	}
	t.Run("it is back", func(t *testing.T) {
		if !*long {
			t.Skip("NOT TESTED: it takes a minute; make stress does it")
		}
		a.Start()
		_, d.pool = a.Roots()
		testkit.Within(t, 6*time.Minute, "a certificate", func() bool { _, err := d.presented("127.4.0.1", "127.4.0.1"); return err == nil })
		conn, err := d.webSocket(strings.Replace(d.urlAt("127.4.0.1"), "https", "wss", 1) + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(ws.StatusNormalClosure, "")
	})
}

// TestACMEDirectoryFails: if the directory cannot be written, the authority is not asked, and the process tries again.
func TestACMEDirectoryFails(t *testing.T) {
	t.Parallel()
	a, log := acmetest.New(t), new(testkit.LogBuffer)
	a.Start()
	_, pool := a.Roots()
	c := issuedConfig(t, a, "", "127.5.0.1")
	locks := filepath.Join(c.StateDir, acmeDir, "locks")
	if err := os.MkdirAll(filepath.Dir(locks), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(locks, nil, 0o600); err != nil { // where a directory should be
		t.Fatal(err)
	}
	r := startIssued(t, a, c, log, func(s *acmeCertificates) { s.again = 10 * time.Millisecond })
	testkit.Eventually(t, "it is logged", func() bool { return strings.Contains(log.String(), "a certificate cannot be obtained") })
	if strings.Contains(a.Log(), "/order") {
		t.Errorf("the authority was asked:\n%s", a.Log())
	}
	if err := os.Remove(locks); err != nil {
		t.Fatal(err)
	}
	d := dialler{running: r, pool: pool}
	d.awaits(t, "127.5.0.1")
}

// TestACMEAttempts: the first attempt of a process is a repetition, for the library, if another process tried
// within an hour.
func TestACMEAttempts(t *testing.T) {
	t.Parallel()
	s := &acmeCertificates{storage: &certmagic.FileStorage{Path: t.TempDir()}, logger: slog.New(slog.DiscardHandler)}
	obtaining := func(name string, attempt int) int {
		t.Helper()
		ctx := context.WithValue(t.Context(), certmagic.AttemptsCtxKey, &attempt)
		if err := s.onEvent(ctx, "cert_obtaining", map[string]any{"identifier": name}); err != nil {
			t.Error(err)
		}
		return attempt
	}
	for i, want := range []int{0, 1, 1} {
		if got := obtaining("2001:db8::7", 0); got != want {
			t.Errorf("process %d: attempt %d, want %d", i, got, want)
		}
	}
	if got := obtaining("2001:db8::7", 3); got != 3 {
		t.Errorf("a repetition became attempt %d", got)
	}
	if got := obtaining("203.0.113.7", 0); got != 0 {
		t.Errorf("another name: attempt %d", got)
	}
	for _, age := range []time.Duration{2 * time.Hour, -2 * time.Hour} { // or the clock was wrong
		name := filepath.Join(s.storage.Path, "attempts", certmagic.StorageKeys.Safe("203.0.113.7"))
		if err := os.Chtimes(name, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		if got := obtaining("203.0.113.7", 0); got != 0 {
			t.Errorf("after %v: attempt %d", age, got)
		}
	}
}

// TestACMEDirectory: a directory in which others can plant an account key is refused.
func TestACMEDirectory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes of files")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkACMEDir(dir); !errors.Is(err, keyfile.ErrPermissions) || !strings.Contains(err.Error(), "acme in state_dir: ") {
		t.Errorf("%v", err)
	}
	if err := checkACMEDir(filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
}

// TestACMESettings: what cannot be is refused before anything is opened.
func TestACMESettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode   Mode
		want   string
		change func(*config.Config)
	}{
		{Serve, "", func(*config.Config) {}},
		{Serve, "", func(c *config.Config) {
			c.Advertise = []config.Host{host(t, "10.0.0.7")}
			c.AdvertiseName.Host = "relay.example.org"
		}},
		{Serve, "10.0.0.7, which is not a public address", func(c *config.Config) { c.Advertise = []config.Host{host(t, "10.0.0.7")} }},
		{Serve, "", func(c *config.Config) {
			c.Advertise, c.ACMEServer = []config.Host{host(t, "10.0.0.7")}, "https://ca.example.org/dir"
		}},
		{Serve, "http listens where players cannot reach it", func(c *config.Config) { c.HTTP = addr("127.0.0.1:0") }},
		{Serve, "is not a full name", func(c *config.Config) { c.AdvertiseName.Host = "localhost" }},
		{Serve, "acme_server", func(c *config.Config) { c.ACMEServer = "http://ca.example.org/dir" }},
		{Serve, "is not the https", func(c *config.Config) { c.ACMEServer = "" }},
		{API, "acme: set advertise_name", func(*config.Config) {}},
	} {
		settings := local()
		settings.ACME, settings.HTTP, settings.UDP = true, addr("0.0.0.0:0"), []config.Addr{addr("0.0.0.0:0")}
		settings.Advertise = []config.Host{host(t, "203.0.113.7")}
		c.change(&settings)
		_, err := newCertificates(&settings, c.mode, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}
