package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

// filesEvery is the time between two looks at the files: certificates are
// renewed days before they expire.
const filesEvery = 10 * time.Second

// A certificate that ends within expiryWarning, and in less than a quarter of its
// validity, is complained of once in warnEvery: an expired one takes the relay out of the
// fleet. Certificates that are renewed by themselves usually are at a third of it.
const (
	expiryWarning = 14 * 24 * time.Hour
	warnEvery     = 24 * time.Hour
)

var ErrFiles = errors.New("cluster: the certificate files cannot be used")

// Files names the PEM files of a node: its certificate, the key of that, and
// the certificate of the cluster's authority. The last may hold several: then a
// node is trusted that any of them has signed. It may also hold revocation lists of
// theirs, as PEM blocks "X509 CRL".
type Files struct{ Certificate, Key, CA string }

// loaded is what was in the files. It does not change.
type loaded struct {
	pair    tls.Certificate
	roots   *x509.CertPool
	server  *tls.Config     // of a relay
	signer  placement.KeyID // of the certificate
	revoked revocations
}

// credentials are a node's certificate and the authorities that it trusts. They are
// reloaded when their files change.
type credentials struct {
	files   Files
	role    Role
	relay   alloc.RelayID // of a relay
	logger  *slog.Logger
	every   time.Duration
	changed func() // called after new files are in force; may be nil
	current atomic.Pointer[loaded]

	watch  *keyfile.Watch // the loop's once it runs, as the following field
	warned time.Time
}

func newCredentials(files Files, role Role, relay alloc.RelayID, logger *slog.Logger) (*credentials, error) {
	c := &credentials{
		files: files, role: role, relay: relay, logger: logger, every: filesEvery,
		watch: keyfile.NewWatch(files.Certificate, files.Key, files.CA),
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *credentials) load() error {
	pair, err := tls.LoadX509KeyPair(c.files.Certificate, c.files.Key)
	if err != nil {
		return fmt.Errorf("%w: %s, %s: %w", ErrFiles, c.files.Certificate, c.files.Key, err)
	}
	authority, err := os.ReadFile(c.files.CA)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFiles, err)
	}
	l := &loaded{pair: pair, roots: x509.NewCertPool(), signer: keyID(pair.Leaf.Raw)}
	if !l.roots.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%w: %s holds no certificate", ErrFiles, c.files.CA)
	}
	if l.revoked, err = readRevocations(authority); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFiles, c.files.CA, err)
	}
	if err := c.check(l); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFiles, c.files.Certificate, err)
	}
	l.server = serverTLS(l)
	c.current.Store(l)
	return nil
}

// check verifies a node's own certificate as its peers will, so that a node with wrong
// files reports it at its start.
func (c *credentials) check(l *loaded) error {
	leaf := l.pair.Leaf
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: l.roots, KeyUsages: []x509.ExtKeyUsage{c.role.usage()},
	}); err != nil {
		return err
	}
	if err := l.revoked.check(leaf); err != nil {
		return err
	}
	role, err := roleOf(leaf)
	switch {
	case err != nil:
		return err
	case role != c.role:
		return fmt.Errorf("%w: it is for %q, not %q", ErrRole, role, c.role)
	case c.role == RoleRelay:
		return leaf.VerifyHostname(c.relay.String())
	}
	return nil
}

// serverTLS returns the TLS settings of a relay's listener. Sessions are not resumed,
// so each connection verifies the caller's current certificate.
func serverTLS(l *loaded) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{l.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              l.roots,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if _, err := roleOf(s.PeerCertificates[0]); err != nil {
				return err
			}
			return l.revoked.check(s.PeerCertificates...)
		},
	}
}

// server returns the TLS settings of a relay's listener, which follow the files.
func (c *credentials) server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load().server, nil },
	}
}

// client returns the TLS settings for connections to one relay, which must have a
// certificate of the cluster with that id, whatever its address is.
func (c *credentials) client(relay alloc.RelayID) *tls.Config {
	l := c.current.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    l.roots,
		ServerName: relay.String(),
		// Sent even to a relay that trusts another CA, so that its error says so
		// instead of reporting a missing certificate.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &l.pair, nil },
		VerifyConnection: func(s tls.ConnectionState) error {
			role, err := roleOf(s.PeerCertificates[0])
			if err == nil && role != RoleRelay {
				err = fmt.Errorf("%w: it is for %q, not %q", ErrRole, role, RoleRelay)
			}
			if err != nil {
				return err
			}
			return l.revoked.check(s.PeerCertificates...)
		},
	}
}

func (c *credentials) notAfter() time.Time { return c.current.Load().pair.Leaf.NotAfter }

func (c *credentials) run(ctx context.Context) {
	c.warn(time.Now())
	periodic.Run(ctx, c.every, func() {
		c.reload()
		c.warn(time.Now())
	})
}

// reload reads the files if they have changed. Unusable or partly written files are
// logged once and change nothing: the rest of a write is another change.
func (c *credentials) reload() {
	if !c.watch.Changed() {
		return
	}
	if err := c.load(); err != nil {
		c.logger.Error("the cluster's certificate files have changed and cannot be used: those before stay in force", "error", err)
		return
	}
	c.warned = time.Time{}
	c.logger.Info("the cluster's certificate files were read again", "certificate", c.files.Certificate, "not_after", c.notAfter())
	if c.changed != nil {
		c.changed()
	}
}

func (c *credentials) warn(now time.Time) {
	leaf := c.current.Load().pair.Leaf
	left := leaf.NotAfter.Sub(now)
	if left > min(expiryWarning, leaf.NotAfter.Sub(leaf.NotBefore)/4) || now.Sub(c.warned) < warnEvery {
		return
	}
	c.warned = now
	c.logger.Warn("the cluster's certificate expires soon; after that the fleet rejects this node",
		"certificate", c.files.Certificate, "not_after", c.notAfter())
}

// Role is the role of a certificate's holder in the cluster. A certificate has it as
// the URI "ferry:role:" followed by the role.
type Role string

const (
	// RoleAPI is for processes that serve the players' API. They may also do what
	// RoleAdmin may, since operators reach all relays through them.
	RoleAPI Role = "api"
	// RoleRelay is for relays. Their certificates have the relay id as a DNS name.
	RoleRelay Role = "relay"
	// RoleAdmin permits the calls of operators, and no reservations.
	RoleAdmin Role = "admin"
)

const rolePrefix = "ferry:role:"

// ErrRole is returned for a certificate without exactly one role, or with another role
// than required.
var ErrRole = errors.New("cluster: the certificate has not the role that is needed")

func (r Role) known() bool { return r == RoleAPI || r == RoleRelay || r == RoleAdmin }

func (r Role) uri() *url.URL { return &url.URL{Scheme: "ferry", Opaque: "role:" + string(r)} }

// usage returns the extended key usage of the role. Relays are servers and the others
// clients, so that no certificate serves as both.
func (r Role) usage() x509.ExtKeyUsage {
	if r == RoleRelay {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// CertificateRole returns the role of the certificate in a file.
func CertificateRole(file string) (Role, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("%w: %s has no certificate in PEM", ErrRole, file)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	return roleOf(c)
}

// roleOf returns the role in a certificate, or ErrRole unless there is exactly one.
func roleOf(c *x509.Certificate) (Role, error) {
	var roles []Role
	for _, u := range c.URIs {
		if name, ok := strings.CutPrefix(u.String(), rolePrefix); ok {
			roles = append(roles, Role(name))
		}
	}
	switch {
	case len(roles) == 0:
		return "", fmt.Errorf("%w: it names none (a URI %s...)", ErrRole, rolePrefix)
	case len(roles) > 1:
		return "", fmt.Errorf("%w: it names %d", ErrRole, len(roles))
	case !roles[0].known():
		return "", fmt.Errorf("%w: it names %q", ErrRole, roles[0])
	}
	return roles[0], nil
}
