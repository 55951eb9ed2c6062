package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/keyfile"
)

// filesEvery is the time between two looks at the files: certificates are
// renewed days before they expire.
const filesEvery = 10 * time.Second

// A certificate that ends within expiryWarning is complained of once in
// warnEvery: an expired one takes the relay out of the fleet.
const (
	expiryWarning = 14 * 24 * time.Hour
	warnEvery     = 24 * time.Hour
)

// ErrFiles is returned for certificate files that cannot be used.
var ErrFiles = errors.New("cluster: the certificate files cannot be used")

// Files names the PEM files of a node: its certificate, the key of that, and
// the certificate of the cluster's authority. The last may hold several: then a
// node is trusted that any of them has signed.
type Files struct{ Certificate, Key, CA string }

// loaded is what was in the files. It does not change.
type loaded struct {
	pair   tls.Certificate
	roots  *x509.CertPool
	server *tls.Config // of a relay
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

// newCredentials reads the files, or says why they are of no use to a node with
// that role.
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

// load puts what is in the files in force, unless it is of no use.
func (c *credentials) load() error {
	pair, err := tls.LoadX509KeyPair(c.files.Certificate, c.files.Key)
	if err != nil {
		return fmt.Errorf("%w: %s, %s: %w", ErrFiles, c.files.Certificate, c.files.Key, err)
	}
	authority, err := os.ReadFile(c.files.CA)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFiles, err)
	}
	l := &loaded{pair: pair, roots: x509.NewCertPool()}
	if !l.roots.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%w: %s holds no certificate", ErrFiles, c.files.CA)
	}
	if err := c.check(l); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFiles, c.files.Certificate, err)
	}
	l.server = serverTLS(l)
	c.current.Store(l)
	return nil
}

// check looks at a node's own certificate as its peers will, so that it is the
// node with the wrong files that complains.
func (c *credentials) check(l *loaded) error {
	leaf := l.pair.Leaf
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: l.roots, KeyUsages: []x509.ExtKeyUsage{c.role.usage()},
	}); err != nil {
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

// serverTLS returns what a relay demands of its callers. No session is resumed:
// what is known of a caller is from its certificate of today.
func serverTLS(l *loaded) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{l.pair},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              l.roots,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := roleOf(s.PeerCertificates[0])
			return err
		},
	}
}

// server returns the settings of a relay's listener, which change with the files.
func (c *credentials) server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load().server, nil },
	}
}

// client returns what is shown to and demanded of one relay: a certificate of
// the cluster with that id, whatever address it has.
func (c *credentials) client(relay alloc.RelayID) *tls.Config {
	l := c.current.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    l.roots,
		ServerName: relay.String(),
		// Shown even to a relay that believes another authority, which then says
		// so, instead of saying that there was none.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &l.pair, nil },
		VerifyConnection: func(s tls.ConnectionState) error {
			role, err := roleOf(s.PeerCertificates[0])
			if err == nil && role != RoleRelay {
				err = fmt.Errorf("%w: it is for %q, not %q", ErrRole, role, RoleRelay)
			}
			return err
		},
	}
}

// notAfter is when the certificate in force ends.
func (c *credentials) notAfter() time.Time { return c.current.Load().pair.Leaf.NotAfter }

// run reads the files again when they have changed, until ctx ends.
func (c *credentials) run(ctx context.Context) {
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	for {
		c.warn(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.reload()
		}
	}
}

// reload reads the files if they have changed since the last look. What is of
// no use, or half written, is complained of once and changes nothing: the rest
// of it is another change.
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
	left := c.notAfter().Sub(now)
	if left > expiryWarning || now.Sub(c.warned) < warnEvery {
		return
	}
	c.warned = now
	c.logger.Warn("the cluster's certificate expires soon; after that the fleet rejects this node",
		"certificate", c.files.Certificate, "not_after", c.notAfter())
}

// Role says what the holder of a certificate is in the cluster. It stands in
// the certificate as the URI "ferry:role:" and the role.
type Role string

// The roles.
const (
	// RoleAPI reserves: the process that answers players' calls. Operators reach
	// all relays through it, so it may do what RoleAdmin may.
	RoleAPI Role = "api"
	// RoleRelay is asked. Its certificate names its relay id as a DNS name.
	RoleRelay Role = "relay"
	// RoleAdmin looks, drains, kicks and closes, and reserves nothing.
	RoleAdmin Role = "admin"
)

// rolePrefix is what all role URIs begin with.
const rolePrefix = "ferry:role:"

// ErrRole is returned for a certificate that names no role, several, or
// another one than is needed.
var ErrRole = errors.New("cluster: the certificate has not the role that is needed")

func (r Role) known() bool { return r == RoleAPI || r == RoleRelay || r == RoleAdmin }

// uri returns what stands in a certificate.
func (r Role) uri() *url.URL { return &url.URL{Scheme: "ferry", Opaque: "role:" + string(r)} }

// usage is what a certificate of the role is good for besides: a relay is
// called and the others call, so that none of them passes for the other kind.
func (r Role) usage() x509.ExtKeyUsage {
	if r == RoleRelay {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// roleOf returns the one role that a certificate names, or ErrRole.
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
