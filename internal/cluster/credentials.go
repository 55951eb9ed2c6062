package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/keyfile"
)

// filesEvery is the time between two looks at the files: whoever renews a
// certificate does so days before it is due.
const filesEvery = 10 * time.Second

// A certificate that ends within expiryWarning is complained of once in
// warnEvery: it takes the relay out of the fleet, and nobody would notice before.
const (
	expiryWarning = 14 * 24 * time.Hour
	warnEvery     = 24 * time.Hour
)

// ErrFiles is returned for certificate files that cannot be used.
var ErrFiles = errors.New("cluster: the certificate files cannot be used")

// Files names the PEM files of a node: its certificate, the key of that, and
// the certificate of the cluster's authority. The last may hold several: then a
// node is believed that any of them has signed.
type Files struct{ Certificate, Key, CA string }

// loaded is what was in the files. It does not change.
type loaded struct {
	pair   tls.Certificate
	roots  *x509.CertPool
	server *tls.Config // of a relay
}

// credentials are a node's certificate and whom it believes. They follow their
// files.
type credentials struct {
	files   Files
	role    Role
	relay   alloc.RelayID // of a relay
	logger  *slog.Logger
	every   time.Duration
	changed func() // is told after new files are in force; nil: nobody
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
	c.logger.Warn("the cluster's certificate ends soon; from then on nobody in the fleet believes this node",
		"certificate", c.files.Certificate, "not_after", c.notAfter())
}
