package cluster

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
	"github.com/ferryrelay/ferry/internal/keyfile"
)

// The default validity of certificates.
const (
	DefaultCAValid   = 10 * 365 * 24 * time.Hour
	DefaultNodeValid = 365 * 24 * time.Hour
)

// backdate is by how much a certificate begins early, so that a machine whose
// clock is slow takes it at once.
const backdate = time.Hour

// maxHosts bounds the names and addresses in one certificate.
const maxHosts = 100

// ErrIssue is returned for a certificate that no node could use.
var ErrIssue = errors.New("cluster: cannot issue this certificate")

// CA makes the certificates of a cluster. It does not change, and any goroutine
// may use it. It prints no key.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA makes an authority with a fresh key (ECDSA P-256, which every tool
// reads). Zero valid: 10 years.
func NewCA(name string, valid time.Duration) (*CA, error) {
	if valid == 0 {
		valid = DefaultCAValid
	}
	if name == "" || valid < 0 {
		return nil, fmt.Errorf("%w: it needs a name and a validity that is not negative", ErrIssue)
	}
	template, err := newTemplate(name, valid)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cluster: make a key: %w", err)
	}
	return sign(template, template, key, key)
}

// LoadCA reads an authority that [CA.Write] wrote, or openssl.
func LoadCA(certFile, keyFile string) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("cluster: the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("cluster: %s is no authority's certificate", certFile)
	}
	return &CA{cert: pair.Leaf, key: key}, nil
}

// Write makes both files, readable by their owner alone. It replaces no file:
// without the key that was there no certificate of its cluster could ever be
// renewed. The error then wraps fs.ErrExist.
func (ca *CA) Write(certFile, keyFile string) error {
	for _, name := range []string{certFile, keyFile} {
		if _, err := os.Lstat(name); err == nil {
			return fmt.Errorf("cluster: %s: %w", name, fs.ErrExist)
		}
	}
	return writePair(ca.cert, ca.key, certFile, keyFile)
}

// NotAfter is when the authority ends, and with it all that it has issued.
func (ca *CA) NotAfter() time.Time { return ca.cert.NotAfter }

// Request says what a node's certificate is for.
type Request struct {
	Role Role
	// Name is for display. Empty: the relay id, or the role.
	Name string
	// Relay is the id of a relay; other roles have none.
	Relay alloc.RelayID
	// Hosts are names and addresses under which a relay can be called besides,
	// for instance by curl. Ferry does not need them.
	Hosts []string
	// Valid is for how long. Zero: a year. It ends with the authority's.
	Valid time.Duration
}

// Issued is a node's certificate with its key. It prints no key.
type Issued struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Issue makes a key and a certificate for it, or returns ErrIssue.
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

// fill checks the request and fills in what zero stands for.
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
		return fmt.Errorf("%w: nobody calls an %s, so it has no hosts", ErrIssue, r.Role)
	case slices.Contains(r.Hosts, ""):
		return fmt.Errorf("%w: a host is empty", ErrIssue)
	case len(r.Hosts) > maxHosts:
		return fmt.Errorf("%w: %d hosts, at most %d", ErrIssue, len(r.Hosts), maxHosts)
	case r.Valid < 0:
		return fmt.Errorf("%w: the validity is negative", ErrIssue)
	}
	return nil
}

// Write makes both files, readable by their owner alone, in the place of those
// that are there: the key first, so that a reader between the two finds a pair
// that does not fit rather than a certificate whose key is lost.
func (i Issued) Write(certFile, keyFile string) error {
	return writePair(i.cert, i.key, certFile, keyFile)
}

// NotAfter is when the certificate ends.
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

// sign returns the certificate of key that parent's key signs.
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

func writePair(cert *x509.Certificate, key crypto.Signer, certFile, keyFile string) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	if err := keyfile.Write(keyFile, private); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := keyfile.Write(certFile, public); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}
