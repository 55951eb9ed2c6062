package rpc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

// maxKnown bounds the certificates that a signer remembers, each of which takes some
// 3 kB: more than a fleet has. Beyond it all are learned again.
const maxKnown = 8192

// recentSize is the number of the latest signatures, and of the latest verifications, that
// a signer remembers at least; twice as many take 15 MiB. A relay signs the same
// statements about its hosts for minutes, and the joiners of a match read the same entries.
const recentSize = 1 << 15

var _ placement.Signer = (*Signer)(nil)

// Signer signs entries of the store with the key of a node's certificate, and verifies
// those of other nodes. Certificates of API processes and relays count, those of
// operators do not. The statements have a prefix of their own, so no signature here is
// one of TLS.
type Signer struct {
	creds *credentials

	mu       sync.Mutex // guards the following fields
	known    map[placement.KeyID]*signerCertificate
	signed   recent[[]byte]   // by statement
	signedBy *loaded          // the key of signed
	verified recent[struct{}] // by verificationDigest
}

// recent has at least the latest recentSize values that were put, and at most twice as
// many.
type recent[V any] struct{ now, before map[[sha256.Size]byte]V }

func (r *recent[V]) get(digest [sha256.Size]byte) (V, bool) {
	v, ok := r.now[digest]
	if !ok {
		if v, ok = r.before[digest]; ok {
			r.put(digest, v)
		}
	}
	return v, ok
}

func (r *recent[V]) put(digest [sha256.Size]byte, v V) {
	if r.now == nil || len(r.now) >= recentSize {
		r.now, r.before = make(map[[sha256.Size]byte]V), r.now
	}
	r.now[digest] = v
}

// signerCertificate is a verified certificate of a node. It is immutable.
type signerCertificate struct {
	cert   *x509.Certificate
	author placement.Author
	by     *loaded // that verified it
}

// NewSigner reads the certificate files of an API process or, if relay is not zero, of
// that relay. It starts no goroutine. Errors wrap ErrFiles.
func NewSigner(files Files, relay alloc.RelayID) (*Signer, error) {
	role := RoleRelay
	if relay.IsZero() {
		role = RoleAPI
	}
	// The process's dialer or server reads the same files, and logs about them.
	creds, err := newCredentials(files, role, relay, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := signable(creds.current.Load().pair.Leaf); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFiles, files.Certificate, err)
	}
	return &Signer{creds: creds, known: make(map[placement.KeyID]*signerCertificate)}, nil
}

// Run reloads changed files until ctx is done.
func (s *Signer) Run(ctx context.Context) { s.creds.run(ctx) }

// Sign signs a statement with the key of the certificate in use.
func (s *Signer) Sign(statement []byte) (placement.Certificate, []byte, error) {
	l, sum := s.creds.current.Load(), sha256.Sum256(statement)
	cert := placement.Certificate{Key: l.signer, DER: l.pair.Leaf.Raw}
	s.mu.Lock()
	if s.signedBy != l {
		s.signed, s.signedBy = recent[[]byte]{}, l
	}
	signature, ok := s.signed.get(sum)
	s.mu.Unlock()
	if ok {
		return cert, signature, nil
	}
	signature, err := l.sign(statement, sum)
	if err != nil {
		return placement.Certificate{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signedBy == l {
		s.signed.put(sum, signature)
	}
	return cert, signature, nil
}

func (l *loaded) sign(statement []byte, sum [sha256.Size]byte) ([]byte, error) {
	key, ok := l.pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%w: the key cannot sign", ErrFiles)
	}
	digest, hash := sum[:], crypto.SHA256
	if _, pure := key.Public().(ed25519.PublicKey); pure {
		digest, hash = statement, crypto.Hash(0)
	}
	signature, err := key.Sign(rand.Reader, digest, hash)
	if err != nil {
		return nil, fmt.Errorf("cluster: sign: %w", err)
	}
	return signature, nil
}

// Verify returns the author of a statement.
func (s *Signer) Verify(key placement.KeyID, statement, signature []byte) (placement.Author, error) {
	s.mu.Lock()
	known := s.known[key]
	s.mu.Unlock()
	if known == nil || known.by != s.creds.current.Load() {
		return placement.Author{}, placement.ErrUnknownKey
	}
	if now := time.Now(); now.After(known.cert.NotAfter) || now.Before(known.cert.NotBefore) {
		return placement.Author{}, fmt.Errorf("%w: the certificate of %q is valid from %v to %v",
			placement.ErrSignature, known.cert.Subject.CommonName, known.cert.NotBefore, known.cert.NotAfter)
	}
	digest := verificationDigest(key, statement, signature)
	s.mu.Lock()
	_, again := s.verified.get(digest)
	s.mu.Unlock()
	if again {
		return known.author, nil
	}
	if err := known.cert.CheckSignature(algorithmOf(known.cert), statement, signature); err != nil {
		return placement.Author{}, fmt.Errorf("%w: %w", placement.ErrSignature, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified.put(digest, struct{}{})
	return known.author, nil
}

func verificationDigest(key placement.KeyID, statement, signature []byte) [sha256.Size]byte {
	sum := sha256.Sum256(statement)
	return sha256.Sum256(slices.Concat(key[:], sum[:], signature))
}

// Learn verifies a certificate and remembers it.
func (s *Signer) Learn(key placement.KeyID, certificate []byte) error {
	if keyID(certificate) != key {
		return fmt.Errorf("%w: another certificate is stored under its id", placement.ErrSignature)
	}
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return fmt.Errorf("%w: %w", placement.ErrSignature, err)
	}
	by := s.creds.current.Load()
	author, err := by.authorOf(cert)
	if err != nil {
		return fmt.Errorf("%w: %w", placement.ErrSignature, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[key] = &signerCertificate{cert: cert, author: author, by: by}
	return nil
}

func (l *loaded) authorOf(cert *x509.Certificate) (author placement.Author, err error) {
	role, err := roleOf(cert)
	switch {
	case err != nil:
		return author, err
	case role == RoleAdmin:
		return author, fmt.Errorf("%w: it is for %q", ErrRole, role)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: l.roots, KeyUsages: []x509.ExtKeyUsage{role.usage()}}); err != nil {
		return author, err
	}
	if err := l.revoked.check(cert); err != nil {
		return author, err
	}
	if err := signable(cert); err != nil {
		return author, err
	}
	if role == RoleAPI {
		return placement.Author{API: true}, nil
	}
	for _, name := range cert.DNSNames {
		id, err := proto.ParseAllocationID(name)
		if err != nil || id.String() != name {
			continue // one of Request.Hosts
		}
		if !author.Relay.IsZero() {
			return placement.Author{}, fmt.Errorf("%w: it names two relays", ErrRole)
		}
		author.Relay = alloc.RelayID(id)
	}
	if author.Relay.IsZero() {
		return placement.Author{}, fmt.Errorf("%w: it names no relay", ErrRole)
	}
	return author, nil
}

func keyID(certificate []byte) (id placement.KeyID) {
	sum := sha256.Sum256(certificate)
	copy(id[:], sum[:])
	return id
}

func algorithmOf(cert *x509.Certificate) x509.SignatureAlgorithm {
	switch cert.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return x509.ECDSAWithSHA256
	case ed25519.PublicKey:
		return x509.PureEd25519
	case *rsa.PublicKey:
		return x509.SHA256WithRSA
	}
	return x509.UnknownSignatureAlgorithm
}

// signable returns an error for a certificate whose key signs no entries.
func signable(cert *x509.Certificate) error {
	if algorithmOf(cert) == x509.UnknownSignatureAlgorithm {
		return fmt.Errorf("a key of type %v cannot sign", cert.PublicKeyAlgorithm)
	}
	return nil
}
