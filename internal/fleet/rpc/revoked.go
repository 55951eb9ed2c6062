package rpc

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

const (
	pemCertificate = "CERTIFICATE"
	pemCRL         = "X509 CRL"
)

var (
	ErrRevoked = errors.New("cluster: the certificate was revoked")
	ErrCRL     = errors.New("cluster: the revocation list cannot be used")
)

// revocations are the certificates that the lists of the CA file revoke, by issuer and
// serial number. It is immutable.
type revocations map[string]struct{}

func revocationKey(rawIssuer []byte, serial *big.Int) string {
	return string(rawIssuer) + "\x00" + serial.Text(16)
}

func (r revocations) check(certs ...*x509.Certificate) error {
	for _, c := range certs {
		if _, ok := r[revocationKey(c.RawIssuer, c.SerialNumber)]; ok {
			return fmt.Errorf("%w: %q, serial number %x", ErrRevoked, c.Subject.CommonName, c.SerialNumber)
		}
	}
	return nil
}

// readRevocations reads the revocation lists in the file of the authorities. Each must be
// signed by one of these. A list past its next update stays in force: its entries remain
// revoked, and a fleet must not stop because no new list was made.
func readRevocations(text []byte) (revocations, error) {
	var authorities []*x509.Certificate
	var lists []*x509.RevocationList
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemCertificate:
			if c, err := x509.ParseCertificate(block.Bytes); err == nil { // as CertPool.AppendCertsFromPEM
				authorities = append(authorities, c)
			}
		case pemCRL:
			l, err := x509.ParseRevocationList(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrCRL, err)
			}
			lists = append(lists, l)
		}
	}
	all := make(revocations)
	for _, l := range lists {
		signed := slices.ContainsFunc(authorities, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, l.RawIssuer) && l.CheckSignatureFrom(c) == nil
		})
		if !signed {
			return nil, fmt.Errorf("%w: no authority in the file has signed it", ErrCRL)
		}
		for _, e := range l.RevokedCertificateEntries {
			all[revocationKey(l.RawIssuer, e.SerialNumber)] = struct{}{}
		}
	}
	return all, nil
}

// Revoke adds the certificate in certFile to the revocation list of the CA in caFile, the
// file that the nodes trust. Its other content stays. The error wraps ErrIssue if another
// authority has issued the certificate.
func (ca *CA) Revoke(caFile, certFile string) error {
	text, err := os.ReadFile(certFile)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%w: %s holds no certificate", ErrIssue, certFile)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("cluster: %s: %w", certFile, err)
	}
	if err := cert.CheckSignatureFrom(ca.cert); err != nil {
		return fmt.Errorf("%w: %s: another authority has issued it: %w", ErrIssue, certFile, err)
	}
	trusted, err := os.ReadFile(caFile)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if _, err := readRevocations(trusted); err != nil {
		return fmt.Errorf("%s: %w", caFile, err)
	}
	now := time.Now()
	list := &x509.RevocationList{
		Number: big.NewInt(now.UnixNano()), ThisUpdate: now.Add(-backdate), NextUpdate: ca.cert.NotAfter,
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: cert.SerialNumber, RevocationTime: now}},
	}
	var kept []byte
	for block, rest := pem.Decode(trusted); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == pemCRL {
			old, err := x509.ParseRevocationList(block.Bytes)
			if err == nil && old.CheckSignatureFrom(ca.cert) == nil {
				list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, old.RevokedCertificateEntries...)
				continue
			}
		}
		kept = append(kept, pem.EncodeToMemory(block)...)
	}
	slices.SortFunc(list.RevokedCertificateEntries, func(a, b x509.RevocationListEntry) int { return a.SerialNumber.Cmp(b.SerialNumber) })
	list.RevokedCertificateEntries = slices.CompactFunc(list.RevokedCertificateEntries,
		func(a, b x509.RevocationListEntry) bool { return a.SerialNumber.Cmp(b.SerialNumber) == 0 })
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIssue, err)
	}
	if err := keyfile.Write(caFile, append(kept, pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der})...)); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}
