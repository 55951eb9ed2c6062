package rpc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

const (
	DefaultCAValid   = 10 * 365 * 24 * time.Hour
	DefaultNodeValid = 365 * 24 * time.Hour
)

// backdate is how long before its issue a certificate becomes valid, for machines whose
// clocks are slow.
const backdate = time.Hour

const maxHosts = 100

// ErrIssue is returned for a certificate that no node could use.
var ErrIssue = errors.New("cluster: cannot issue this certificate")

// CA issues the certificates of a cluster. It is immutable and may be used
// concurrently. It prints no key.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA returns a CA with a new ECDSA P-256 key. A zero valid means 10 years. With roles, nodes
// accept its certificates for these only, since the CA has no other extended key usage: a CA for
// [RoleRelay] cannot make a certificate that calls relays. Errors wrap ErrIssue.
func NewCA(name string, valid time.Duration, roles ...Role) (*CA, error) {
	if valid == 0 {
		valid = DefaultCAValid
	}
	if name == "" || valid < 0 {
		return nil, fmt.Errorf("%w: a name is required, and the validity must not be negative", ErrIssue)
	}
	template, err := newTemplate(name, valid)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	for _, r := range roles {
		template.ExtKeyUsage = append(template.ExtKeyUsage, r.usage())
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cluster: make a key: %w", err)
	}
	return sign(template, template, key, key)
}

// LoadCA reads a CA that [CA.Write] or openssl has written.
func LoadCA(certFile, keyFile string) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("cluster: the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("cluster: %s is not the certificate of a CA", certFile)
	}
	return &CA{cert: pair.Leaf, key: key}, nil
}

// Write creates both files with mode 0600. It replaces no file, since a cluster whose
// CA key is lost can renew no certificate. The error then wraps fs.ErrExist.
func (ca *CA) Write(certFile, keyFile string) error {
	for _, name := range []string{certFile, keyFile} {
		if _, err := os.Lstat(name); err == nil {
			return fmt.Errorf("cluster: %s: %w", name, fs.ErrExist)
		}
	}
	return writePair(ca.cert, ca.key, certFile, keyFile)
}

// PEM returns what [CA.Write] writes.
func (ca *CA) PEM() (cert, key []byte, err error) { return encodePair(ca.cert, ca.key) }

// NotAfter returns the time at which the CA's certificate expires, and all its
// certificates with it.
func (ca *CA) NotAfter() time.Time { return ca.cert.NotAfter }

type Request struct {
	Role Role
	// Name is the common name. Empty: the relay id, or the role.
	Name string
	// Relay is the id of a relay. Required for RoleRelay, zero for other roles.
	Relay alloc.RelayID
	// Hosts are further names and addresses of a relay, for clients such as curl.
	// Ferry does not use them.
	Hosts []string
	// Valid is the validity. Zero: a year. It ends with that of the CA at the latest.
	Valid time.Duration
}

// Issued is a node's certificate with its key. It prints no key.
type Issued struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Issue returns a certificate with a new key, or an error that wraps ErrIssue.
func (ca *CA) Issue(r Request) (Issued, error) {
	if err := r.fill(); err != nil {
		return Issued{}, err
	}
	template, err := newTemplate(r.Name, r.Valid)
	if err != nil {
		return Issued{}, err
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{r.Role.usage()}
	template.URIs = append(template.URIs, r.Role.uri())
	if r.Role == RoleRelay {
		template.DNSNames = append(template.DNSNames, r.Relay.String())
	}
	for _, h := range r.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Issued{}, fmt.Errorf("cluster: make a key: %w", err)
	}
	signed, err := sign(template, ca.cert, key, ca.key)
	if err != nil {
		return Issued{}, err
	}
	return Issued(*signed), nil
}

func (r *Request) fill() error {
	if r.Valid == 0 {
		r.Valid = DefaultNodeValid
	}
	if r.Name == "" {
		r.Name = string(r.Role)
		if r.Role == RoleRelay {
			r.Name = r.Relay.String()
		}
	}
	switch {
	case !r.Role.known():
		return fmt.Errorf("%w: the role is %q, not api, relay or admin", ErrIssue, r.Role)
	case r.Role == RoleRelay && r.Relay.IsZero():
		return fmt.Errorf("%w: a relay's certificate names its relay id", ErrIssue)
	case r.Role != RoleRelay && !r.Relay.IsZero():
		return fmt.Errorf("%w: only a relay has a relay id", ErrIssue)
	case r.Role != RoleRelay && len(r.Hosts) > 0:
		return fmt.Errorf("%w: only a relay has hosts, not an %s", ErrIssue, r.Role)
	case slices.Contains(r.Hosts, ""):
		return fmt.Errorf("%w: a host is empty", ErrIssue)
	case len(r.Hosts) > maxHosts:
		return fmt.Errorf("%w: %d hosts, at most %d", ErrIssue, len(r.Hosts), maxHosts)
	case r.Valid < 0:
		return fmt.Errorf("%w: the validity is negative", ErrIssue)
	}
	return nil
}

// Write replaces both files, with mode 0600. It writes the key first: a reader between
// the two writes finds a pair that does not match.
func (i Issued) Write(certFile, keyFile string) error {
	return writePair(i.cert, i.key, certFile, keyFile)
}

// NotAfter returns the time at which the certificate expires.
func (i Issued) NotAfter() time.Time { return i.cert.NotAfter }

func newTemplate(name string, valid time.Duration) (*x509.Certificate, error) {
	// RFC 5280 4.1.2.2: positive and at most 20 bytes.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cluster: draw a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(valid), BasicConstraintsValid: true,
	}, nil
}

func sign(template, parent *x509.Certificate, key, by crypto.Signer) (*CA, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssue, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssue, err)
	}
	return &CA{cert: cert, key: key}, nil
}

func encodePair(cert *x509.Certificate, key crypto.Signer) (public, private []byte, err error) {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

func writePair(cert *x509.Certificate, key crypto.Signer, certFile, keyFile string) error {
	public, private, err := encodePair(cert, key)
	if err != nil {
		return err
	}
	if err := keyfile.Write(keyFile, private); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := keyfile.Write(certFile, public); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}
