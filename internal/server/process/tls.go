package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

func hasTLS(c *config.Config) bool { return c.TLSCert != "" || len(c.ACMEDomains) > 0 }

// certificateEvery is the interval at which the certificate files are checked. They are
// usually renewed days before they expire.
const certificateEvery = 10 * time.Second

// certificate is the API's certificate from files, which other programs renew.
type certificate struct {
	cert, key string
	name      string // by which clients ask for it; empty: not known
	logger    *slog.Logger
	current   atomic.Pointer[tls.Certificate]
	files     *keyfile.Watch // the loop's once it runs
}

func loadCertificate(c *config.Config, logger *slog.Logger) (*certificate, error) {
	k := &certificate{
		cert: c.TLSCert, key: c.TLSKey, name: c.AdvertiseName.Host, logger: logger,
		files: keyfile.NewWatch(c.TLSCert, c.TLSKey),
	}
	if err := k.load(); err != nil {
		return nil, fmt.Errorf("tls_cert, tls_key: %w", err)
	}
	return k, nil
}

func (k *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return err
	}
	k.current.Store(&pair)
	return nil
}

// tls returns the TLS configuration of a server with the certificate.
func (k *certificate) tls() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current.Load(), nil },
	}
}

func (k *certificate) ends() map[string]time.Time {
	return map[string]time.Time{k.cert: k.current.Load().Leaf.NotAfter}
}

func (k *certificate) faults(now time.Time) map[string]certificateFault {
	return map[string]certificateFault{k.cert: certificateFaultOf(k.current.Load(), k.name, now)}
}

// reload reads the files if they have changed. It logs an invalid pair once and keeps
// the current one: when a half written pair is complete, the files change again.
func (k *certificate) reload() {
	if !k.files.Changed() {
		return
	}
	if err := k.load(); err != nil {
		k.logger.Error("the certificate files have changed and cannot be used: the previous certificate remains in use",
			"tls_cert", k.cert, "tls_key", k.key, "error", err)
		return
	}
	k.logger.Info("the certificate was read again", "tls_cert", k.cert, "not_after", k.current.Load().Leaf.NotAfter)
}

const (
	// issuedEvery is the interval at which certificates are checked. The library renews
	// one when a third of its time is left.
	issuedEvery = time.Hour
	// After a failure the next attempt follows sooner, each time four times later:
	// authorities count failures per hour and block names.
	issuedAgain = 90 * time.Second // The library itself repeats after at least a minute.
	issuedTries = 3
)

// acmeDir is the directory of account key and certificates in state_dir. In ferry api, nothing else is
// in state_dir.
const acmeDir = "acme"

var (
	errNoName    = errors.New("no certificate is fetched for that name")
	errNotIssued = errors.New("the certificate has not been fetched yet")
)

// acmeCertificates is one certificate per name, fetched and renewed by ACME (RFC 8555). The
// authority's proof is the challenge TLS-ALPN-01 (RFC 8737) on the API's own port.
//
// Only run calls the authority, for the names of the settings. A handshake uses the
// certificates that exist: no client can cause a request or wait for one.
type acmeCertificates struct {
	names     []string // lower case
	manager   *autocert.Manager
	transport *acmeTransport
	logger    *slog.Logger
	every     time.Duration
	again     time.Duration
	current   map[string]*atomic.Pointer[tls.Certificate] // by name; the map is fixed
}

// checkACMEDir returns an error for an existing directory that another user can write, who
// could plant an account key and request certificates with it.
func checkACMEDir(path string) error {
	dir, err := keyfile.OpenDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf(acmeDir+" in state_dir: %w", err)
	}
	return dir.Close()
}

// newACME returns the certificates of the settings. It requests and writes nothing before run.
func newACME(c *config.Config, logger *slog.Logger) (*acmeCertificates, error) {
	if err := checkAuthority(c.ACMEServer); err != nil {
		return nil, err
	}
	dir := filepath.Join(c.StateDir, acmeDir)
	if err := checkACMEDir(dir); err != nil {
		return nil, err
	}
	s := &acmeCertificates{
		logger: logger, every: issuedEvery, again: issuedAgain, transport: newACMETransport(),
		current: make(map[string]*atomic.Pointer[tls.Certificate]),
	}
	for _, name := range c.ACMEDomains {
		host := strings.ToLower(name.Host)
		s.names = append(s.names, host)
		s.current[host] = new(atomic.Pointer[tls.Certificate])
	}
	s.manager = &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(dir),
		HostPolicy: autocert.HostWhitelist(s.names...),
		Client: &acme.Client{
			DirectoryURL: c.ACMEServer, UserAgent: "ferry", RetryBackoff: s.transport.backoff,
			HTTPClient: &http.Client{Transport: s.transport},
		},
	}
	return s, nil
}

// checkAuthority refuses an authority without TLS, except on loopback.
func checkAuthority(text string) error {
	u, err := url.Parse(text)
	if err == nil && u.Host != "" {
		addr, _ := netip.ParseAddr(u.Hostname())
		if u.Scheme == "https" || u.Scheme == "http" && addr.IsLoopback() {
			return nil
		}
	}
	return fmt.Errorf("acme_server: %q is not the https address of an authority's directory", text)
}

// tls returns the TLS configuration of a server that has the certificates and answers
// the authority's challenge.
func (s *acmeCertificates) tls() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.choose,
		NextProtos:     []string{"http/1.1", acme.ALPNProto},
	}
}

// choose returns the certificate for a handshake: the first one for a client that sends
// no name, as a health check may.
func (s *acmeCertificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if name == "" {
		name = s.names[0]
	}
	current := s.current[name]
	if current == nil {
		return nil, errNoName
	}
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acme.ALPNProto {
		return s.manager.GetCertificate(hello) // The proof, which lies ready.
	}
	if c := current.Load(); c != nil {
		return c, nil
	}
	return nil, errNotIssued
}

func (s *acmeCertificates) ends() map[string]time.Time {
	ends := make(map[string]time.Time)
	for _, name := range s.names {
		ends[name] = time.Unix(0, 0)
		if c := s.current[name].Load(); c != nil {
			ends[name] = c.Leaf.NotAfter
		}
	}
	return ends
}

func (s *acmeCertificates) faults(now time.Time) map[string]certificateFault {
	faults := make(map[string]certificateFault)
	for _, name := range s.names {
		faults[name] = certificateFaultOf(s.current[name].Load(), name, now)
	}
	return faults
}

func (s *acmeCertificates) run(ctx context.Context) {
	s.transport.setContext(ctx)
	again := s.again
	for {
		wait := s.every
		if !s.refresh(ctx) {
			wait, again = min(again, s.every), again*4
		} else {
			again = s.again
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (s *acmeCertificates) refresh(ctx context.Context) bool {
	good := true
	for _, name := range s.names {
		c, err := s.manager.GetCertificate(acmeHello(name))
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			good = false
			s.logger.Error("no certificate was issued: check that the name resolves to this machine, and that port 443 is the API's",
				"name", name, "error", err)
			continue
		}
		before := s.current[name].Swap(c)
		if before == nil || !before.Leaf.Equal(c.Leaf) {
			s.logger.Info("certificate in use", "name", name, "not_after", c.Leaf.NotAfter)
		}
	}
	return good
}

// acmeHello is a ClientHello that accepts ECDSA certificates, as all clients of WebSocket
// do.
func acmeHello(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName:       name,
		CipherSuites:     []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
		SupportedCurves:  []tls.CurveID{tls.CurveP256},
	}
}

const (
	authorityWithin = 30 * time.Second
	// maxAuthority limits its response, a chain of certificates, in bytes.
	maxAuthority = 1 << 20
	// maxWait limits Retry-After of the authority, so that the shutdown need not wait
	// for it.
	maxWait = 5 * time.Second
)

// errACMEStopped is returned for requests before and after run.
var errACMEStopped = errors.New("acme: not running")

// acmeTransport is the HTTP transport of the ACME library, which has no context: it allows
// requests only while run runs. Its methods may be called concurrently.
type acmeTransport struct {
	base *http.Transport
	ctx  atomic.Pointer[context.Context]
}

func newACMETransport() *acmeTransport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableKeepAlives = true // An idle connection would keep goroutines.
	return &acmeTransport{base: base}
}

// setContext allows requests until ctx ends.
func (l *acmeTransport) setContext(ctx context.Context) { l.ctx.Store(&ctx) }

func (l *acmeTransport) context() (context.Context, bool) {
	p := l.ctx.Load()
	if p == nil || (*p).Err() != nil {
		return nil, false
	}
	return *p, true
}

// RoundTrip implements [http.RoundTripper]. It reads the response before it returns.
func (l *acmeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	run, ok := l.context()
	if !ok {
		return nil, errACMEStopped
	}
	ctx, cancel := context.WithTimeout(r.Context(), authorityWithin)
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	res, err := l.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAuthority))
	res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || s > int(maxWait/time.Second) {
		res.Header.Del("Retry-After")
	}
	return res, nil
}

// backoff returns how long the library waits before it repeats a request, or a negative
// time if it must not.
func (l *acmeTransport) backoff(n int, _ *http.Request, _ *http.Response) time.Duration {
	if _, ok := l.context(); !ok || n > issuedTries {
		return -1
	}
	return min(time.Second<<n, maxWait)
}
