package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
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
	r := startChanged(t, o, func(a *App) { a.certificates.every = 5 * time.Millisecond })
	shown := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", r.api.addr().String(), &tls.Config{InsecureSkipVerify: true})
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

const issuedName = "relay.example.org"

func withAuthority(t *testing.T, a *authority, dir string) config.Config {
	c := local()
	c.ACMEDomains, c.ACMEServer, c.StateDir = domains(t, "Relay.example.org"), a.srv.URL+"/dir", dir
	return c
}

func startIssued(t *testing.T, a *authority, o Options, change func(*App)) running {
	return startChanged(t, o, func(app *App) {
		a.leads(&running{App: app})
		change(app)
	})
}

// TestACMECertificate: a certificate is fetched without a request, its name is
// advertised to players and they connect with it, and another run finds it where it was kept.
func TestACMECertificate(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), filepath.Join(t.TempDir(), "acme")
	r := startIssued(t, a, options(withAuthority(t, a, dir), Serve), func(*App) {})
	testkit.Within(t, time.Minute, "a certificate", func() bool { _, err := a.shake(r, issuedName); return err == nil })
	first, err := a.shake(r, "RELAY.example.org")
	if err != nil || !sameName(first, issuedName) {
		t.Fatalf("%v, %v", first, err)
	}
	for _, name := range []string{"other.example.org", "www.relay.example.org", "x"} {
		if c, err := a.shake(r, name); err == nil {
			t.Errorf("%s is shown %v", name, c.DNSNames)
		}
	}
	if n := a.asked(); n != 1 {
		t.Errorf("the authority was asked %d times", n)
	}

	d := dialler{running: r, pool: a.root.Pool()}
	conn, err := d.webSocket("wss://" + issuedName + ":" + strings.Split(r.api.addr().String(), ":")[1] + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(ws.StatusNormalClosure, "")
	told := r.opts.Config
	web, why := webEndpoints(&told, nil, r.api.addr())
	if why != "" || len(web) != 1 || !strings.EqualFold(web[0].Host, issuedName) || web[0].ConnectionType != "wss" {
		t.Errorf("players are told %+v, %q", web, why)
	}
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}

	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	a.refusing(true) // It need not be asked.
	again := startIssued(t, a, options(withAuthority(t, a, dir), Serve), func(*App) {})
	testkit.Within(t, time.Minute, "the certificate that was kept", func() bool { _, err := a.shake(again, issuedName); return err == nil })
	if c, err := a.shake(again, issuedName); err != nil || !c.Equal(first) {
		t.Errorf("another certificate, %v", err)
	}
	if n := a.asked(); n != 1 {
		t.Errorf("the authority was asked %d times", n)
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

// TestIssuedRefused: an authority that refuses is asked again later, not by the
// handshakes that come in between, and the log says what to look at.
func TestIssuedRefused(t *testing.T) {
	t.Parallel()
	a, log := newAuthority(t), new(testkit.LogBuffer)
	a.refusing(true)
	o := options(withAuthority(t, a, t.TempDir()), Serve)
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	r := startIssued(t, a, o, func(*App) {})
	testkit.Within(t, time.Minute, "a refusal", func() bool { return strings.Contains(log.String(), "no certificate was issued") })
	asked := a.asked()
	for range 20 {
		if _, err := a.shake(r, issuedName); err == nil {
			t.Fatal("there is a certificate")
		}
	}
	if n := a.asked(); n != asked || asked == 0 {
		t.Errorf("the authority was asked %d times, then %d", asked, n)
	}
}

func TestIssuedAgain(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c := withAuthority(t, a, t.TempDir())
	good := c.ACMEServer
	c.ACMEServer = strings.Replace(good, "/dir", "/nowhere", 1)
	log := new(testkit.LogBuffer)
	o := options(c, Serve)
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	startIssued(t, a, o, func(app *App) { app.certificates.acme.again = time.Millisecond })
	testkit.Within(t, time.Minute, "several attempts", func() bool { return strings.Count(log.String(), "no certificate was issued") > 2 })
}

// TestLeashCuts: a request under way ends with run, and an authority cannot make
// us wait for long.
func TestLeashCuts(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(asked)
			<-r.Context().Done()
			return
		}
		w.Header().Set("Retry-After", r.URL.Query().Get("after"))
		_, _ = io.WriteString(w, strings.Repeat("x", maxAuthority+1))
	}))
	defer srv.Close()
	l := newACMETransport()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.setContext(ctx)
	for after, want := range map[string]string{"3": "3", "5": "5", "6": "", "Sun, 22 Nov 2026 00:00:00 GMT": ""} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/?after="+url.QueryEscape(after), nil)
		res, err := l.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if got := res.Header.Get("Retry-After"); got != want || len(body) != maxAuthority || err != nil {
			t.Errorf("%q: wait %q, %d bytes, %v", after, got, len(body), err)
		}
	}
	go func() {
		<-asked
		cancel()
	}()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/slow", nil)
	if res, err := l.RoundTrip(r); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", res, err)
	}
}

// TestLeash: nothing is asked before run and after it.
func TestLeash(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c := withAuthority(t, a, t.TempDir())
	s, err := newACME(&c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.manager.GetCertificate(acmeHello(issuedName)); err == nil || !strings.Contains(err.Error(), errACMEStopped.Error()) {
		t.Errorf("before run: %v", err)
	}
	if d := s.transport.backoff(1, nil, nil); d >= 0 {
		t.Errorf("before run it waits %v to ask again", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.transport.setContext(ctx)
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 3: maxWait, 4: -1} {
		if d := s.transport.backoff(n, nil, nil); d != want {
			t.Errorf("attempt %d waits %v, want %v", n, d, want)
		}
	}
	cancel()
	if d := s.transport.backoff(1, nil, nil); d >= 0 {
		t.Errorf("after run it waits %v to ask again", d)
	}
	s.run(ctx)
	if n := a.asked(); n != 0 {
		t.Errorf("the authority was asked %d times", n)
	}
}

// TestIssuedSettings: what cannot be is refused before anything is opened.
func TestIssuedSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*config.Config){
		"":                       func(*config.Config) {},
		"acme_server":            func(c *config.Config) { c.ACMEServer = "http://ca.example.org/dir" },
		"is not the https":       func(c *config.Config) { c.ACMEServer = "" },
		"not among acme_domains": func(c *config.Config) { c.AdvertiseName.Host = "other.example.org" },
	} {
		c := local()
		c.ACMEDomains, c.HTTP = domains(t, issuedName), addr("0.0.0.0:0")
		change(&c)
		err := Check(c, Serve)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
