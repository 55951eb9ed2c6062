package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/ferryrelay/ferry/internal/config"
)

const (
	// issuedEvery is the time between two looks for a renewed certificate. The
	// library renews one when a third of its time is left.
	issuedEvery = time.Hour
	// After a failure the next attempt comes sooner, each time four times later:
	// authorities count failures by the hour, and lock names out.
	issuedAgain = 90 * time.Second // The library itself asks again after a minute at the soonest.
	// issuedTries is how often one request of the authority is repeated.
	issuedTries = 3
)

var (
	errNoName    = errors.New("app: no certificate is fetched for that name")
	errNotIssued = errors.New("app: the certificate has not been fetched yet")
)

// issued is one certificate per name, fetched and renewed by ACME (RFC 8555). The
// authority's proof is the challenge TLS-ALPN-01 (RFC 8737) on the API's own port.
//
// Only run asks the authority, for the names of the settings. A handshake takes
// what is there: no stranger makes us ask for anything, or waits for an answer.
type issued struct {
	names   []string // lower case
	manager *autocert.Manager
	leash   *leash
	logger  *slog.Logger
	every   time.Duration
	again   time.Duration
	current map[string]*atomic.Pointer[tls.Certificate] // by name; the map is fixed
}

// newIssued returns the certificates that the settings name, nil if there are
// none. Nothing is asked for, and nothing written, before run.
func newIssued(c *config.Config, logger *slog.Logger) (*issued, error) {
	if len(c.ACMEDomains) == 0 {
		return nil, nil
	}
	if err := checkAuthority(c.ACMEServer); err != nil {
		return nil, err
	}
	dir := c.ACMEDir
	if dir == "" {
		dir = filepath.Join(c.StateDir, "acme")
	}
	s := &issued{
		logger: logger, every: issuedEvery, again: issuedAgain, leash: newLeash(),
		current: make(map[string]*atomic.Pointer[tls.Certificate]),
	}
	for _, name := range c.ACMEDomains {
		host := strings.ToLower(name.Host)
		s.names = append(s.names, host)
		s.current[host] = new(atomic.Pointer[tls.Certificate])
	}
	s.manager = &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(dir), Email: c.ACMEEmail,
		HostPolicy: autocert.HostWhitelist(s.names...),
		Client: &acme.Client{
			DirectoryURL: c.ACMEServer, UserAgent: "ferry", RetryBackoff: s.leash.backoff,
			HTTPClient: &http.Client{Transport: s.leash},
		},
	}
	return s, nil
}

// checkAuthority refuses an authority to which others could talk in our name.
func checkAuthority(text string) error {
	u, err := url.Parse(text)
	if err == nil && u.Host != "" {
		addr, _ := netip.ParseAddr(u.Hostname())
		if u.Scheme == "https" || u.Scheme == "http" && addr.IsLoopback() {
			return nil
		}
	}
	return fmt.Errorf("app: acme_server: %q is not the https address of an authority's directory", text)
}

// tls returns the settings of a server that has the certificates and proves to the
// authority that it is the one they are for.
func (s *issued) tls() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.choose,
		NextProtos:     []string{"http/1.1", acme.ALPNProto},
	}
}

// choose returns the certificate for a handshake. Who names nobody, as a health
// check may, gets the first.
func (s *issued) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
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

// run fetches what is missing and takes over what was renewed, until ctx ends.
func (s *issued) run(ctx context.Context) {
	s.leash.hold(ctx)
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

// refresh asks for all certificates, and reports whether they are there.
func (s *issued) refresh(ctx context.Context) bool {
	good := true
	for _, name := range s.names {
		c, err := s.manager.GetCertificate(modern(name))
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			good = false
			s.logger.Error("no certificate was issued: does the name lead to this machine, and port 443 to the API's?",
				"name", name, "error", err)
			continue
		}
		before := s.current[name].Swap(c)
		if before == nil || !before.Leaf.Equal(c.Leaf) {
			s.logger.Info("a certificate is in force", "name", name, "not_after", c.Leaf.NotAfter)
		}
	}
	return good
}

// modern is a hello of a client that takes certificates with ECDSA, as all do that
// speak WebSocket.
func modern(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName:       name,
		CipherSuites:     []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
		SupportedCurves:  []tls.CurveID{tls.CurveP256},
	}
}
