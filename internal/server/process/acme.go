package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
)

const (
	// acmeDir is the directory of account key and certificates in state_dir. In ferry api, nothing else is
	// in state_dir.
	acmeDir = "acme"
	// acmeProtocol is the application protocol of the challenge TLS-ALPN-01 (RFC 8737).
	acmeProtocol = "acme-tls/1"
	// shortlived is Let's Encrypt's profile of six days, the only one for addresses.
	shortlived = "shortlived"

	httpChallengePort, alpnChallengePort = 80, 443
)

var (
	errNotIssued     = errors.New("the certificate has not been issued yet")
	errACMEName      = errors.New("acme: set advertise_name, the name of the certificate")
	errACMEFullName  = errors.New("acme: advertise_name is not a full name, such as relay.example.org")
	errACMEReachable = errors.New("acme: http listens where players cannot reach it at the advertised address; " +
		"set it, for example to 0.0.0.0:7777 or [::]:7777")
)

// acmeNames returns what the certificates are for, one each: advertise_name or, without it, the advertised
// addresses at which the API can be reached.
func acmeNames(c *config.Config, mode Mode) (names []string, err error) {
	switch host := c.AdvertiseName.Host; {
	case host != "" && !strings.Contains(host, "."):
		return nil, errACMEFullName
	case host != "":
		return []string{strings.ToLower(host)}, nil
	case !mode.hasRelay():
		return nil, errACMEName
	}
	advertised, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return nil, err
	}
	for _, addr := range advertised {
		ip := addr.Addr()
		if !isReachable(ip, c.HTTP.Addr()) || slices.Contains(names, ip.String()) {
			continue
		}
		if c.ACMEServer == config.LetsEncrypt && !isPublic(ip) {
			return nil, fmt.Errorf("acme: Let's Encrypt issues no certificate for %s, "+
				"which is not a public address: set advertise or advertise_name", ip)
		}
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return nil, errACMEReachable
	}
	return names, nil
}

// acmeNameAt returns the name of the certificate for a client that sends none, since it connected to an
// address: that of its family. The local address may be another one behind an address translator (NAT).
func acmeNameAt(names []string, local netip.Addr) string {
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil && ip.Is4() == local.Unmap().Is4() {
			return name
		}
	}
	return names[0]
}

// isALPNChallenge reports whether the authority's challenge is TLS-ALPN-01 on the API's own port, as
// port 443 leads there. Otherwise it is HTTP-01, for which ferry listens on port 80 while it lasts.
func isALPNChallenge(c *config.Config) bool {
	if port := c.AdvertiseName.Port; port != 0 {
		return port == alpnChallengePort
	}
	return c.HTTP.Port() == alpnChallengePort
}

// acmeCertificates are certificates that certmagic obtains by ACME (RFC 8555), renews and stores.
//
// Only run calls the authority, for the names of the settings. A handshake uses the certificates that
// exist: no client can cause a request or wait for one.
type acmeCertificates struct {
	names   []string // lower case names, or addresses
	issuer  certmagic.ACMEIssuer
	logger  *slog.Logger
	every   time.Duration // the interval at which certificates are checked
	renewal float64       // the part of its time that is left when one is renewed; 0: the library's
	again   time.Duration // when to try again after an error of the directory

	storage *certmagic.FileStorage
	cache   atomic.Pointer[certmagic.Cache]  // nil before run
	manager atomic.Pointer[certmagic.Config] // nil before run
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
func newACME(c *config.Config, mode Mode, logger *slog.Logger) (*acmeCertificates, error) {
	if err := checkAuthority(c.ACMEServer); err != nil {
		return nil, err
	}
	names, err := acmeNames(c, mode)
	if err != nil {
		return nil, err
	}
	s := &acmeCertificates{
		names: names, logger: logger, every: time.Minute, again: time.Minute,
		storage: &certmagic.FileStorage{Path: filepath.Join(c.StateDir, acmeDir)},
	}
	if err := checkACMEDir(s.storage.Path); err != nil {
		return nil, err
	}
	s.issuer = certmagic.ACMEIssuer{
		CA: c.ACMEServer, Agreed: true, ListenHost: c.HTTP.Addr().String(), AltHTTPPort: httpChallengePort,
	}
	if _, err := netip.ParseAddr(names[0]); err == nil {
		s.issuer.Profile = shortlived
	}
	if isALPNChallenge(c) {
		s.issuer.DisableHTTPChallenge, s.issuer.AltTLSALPNPort = true, int(c.HTTP.Port())
	} else {
		s.issuer.DisableTLSALPNChallenge = true
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
		NextProtos:     []string{"http/1.1", acmeProtocol},
	}
}

func (s *acmeCertificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	manager := s.manager.Load()
	if manager == nil {
		return nil, errNotIssued
	}
	if hello.ServerName == "" {
		local, _ := netip.ParseAddrPort(hello.Conn.LocalAddr().String())
		named := *hello
		named.ServerName = acmeNameAt(s.names, local.Addr())
		hello = &named
	}
	return manager.GetCertificate(hello)
}

func (s *acmeCertificates) states(now time.Time) map[string]certificateState {
	all, cache := make(map[string]certificateState), s.cache.Load()
	for _, name := range s.names {
		var current *tls.Certificate
		if cache != nil {
			if found := cache.AllMatchingCertificates(name); len(found) > 0 {
				current = &found[len(found)-1].Certificate
			}
		}
		all[name] = certificateStateOf(current, name, now)
	}
	return all
}

func (s *acmeCertificates) run(ctx context.Context) {
	// Its log is off: clients that shake hands would write there, and events bring what operators need.
	log := zap.NewNop()
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return s.manager.Load(), nil },
		RenewCheckInterval: s.every, Logger: log,
	})
	defer cache.Stop()
	manager := certmagic.New(cache, certmagic.Config{
		RenewalWindowRatio: s.renewal, Storage: s.storage, OnEvent: s.onEvent, Logger: log,
	})
	s.issuer.Logger = log
	manager.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(manager, s.issuer)}
	s.manager.Store(manager)
	s.cache.Store(cache)
	var names sync.WaitGroup
	for _, name := range s.names {
		names.Go(func() { s.obtain(ctx, manager, name) })
	}
	names.Wait()
	<-ctx.Done()
}

// obtainRefused is when to try again after an error of the authority that the library does not repeat: Let's
// Encrypt permits five failures an hour.
const obtainRefused = 15 * time.Minute

// obtain returns when there is a certificate for a name, which the library then renews.
func (s *acmeCertificates) obtain(ctx context.Context, manager *certmagic.Config, name string) {
	for {
		err := manager.ObtainCertAsync(ctx, name) // It repeats what fails at the authority.
		if err == nil {
			_, err = manager.CacheManagedCertificate(ctx, name)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		wait := s.again
		if errors.As(err, new(certmagic.ErrNoRetry)) {
			wait = obtainRefused
		}
		s.logger.Error("a certificate cannot be obtained", "name", name, "error", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// onEvent logs what becomes of requests. It makes the first attempt of a process that follows another attempt within
// an hour a repetition, which the library makes with the authority's test directory first: a process that
// crashes and starts again and again must not use up the failures that Let's Encrypt permits.
func (s *acmeCertificates) onEvent(ctx context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	switch event {
	case "cert_obtaining":
		attempt, ok := ctx.Value(certmagic.AttemptsCtxKey).(*int)
		if !ok || *attempt > 0 {
			return nil
		}
		key := "attempts/" + certmagic.StorageKeys.Safe(name)
		if last, err := s.storage.Stat(ctx, key); err == nil && time.Since(last.Modified).Abs() < time.Hour {
			*attempt = 1
		}
		return s.storage.Store(ctx, key, nil)
	case "cert_obtained":
		s.logger.Info("a certificate was issued", "name", name, "renewal", data["renewal"])
	case "cert_failed":
		s.logger.Error("no certificate was issued, and it is tried again: check that "+s.challenge(), "name", name, "error", data["error"])
	}
	return nil
}

// challenge says what the authority must reach.
func (s *acmeCertificates) challenge() string {
	if s.issuer.DisableHTTPChallenge {
		return "port 443 leads to the API from the Internet"
	}
	return "port 80 leads to this machine from the Internet, and no other program listens there"
}
