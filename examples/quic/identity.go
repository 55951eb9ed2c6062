package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"math/big"
	"time"
)

// protocol is the ALPN name of this program: HTTP/1.1 on each stream.
const protocol = "ferry-example"

// newIdentity returns the TLS configuration of a host with a new certificate, and the fingerprint of
// the certificate. No authority signs it: the invitation says whom to trust.
func newIdentity() (*tls.Config, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, "", err
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol}}, fingerprintOf(der), nil
}

// trust returns the TLS configuration of a player that accepts only the certificate with a fingerprint.
func trust(fingerprint string) *tls.Config {
	return &tls.Config{
		NextProtos:         []string{protocol},
		InsecureSkipVerify: true, // VerifyConnection decides.
		VerifyConnection: func(state tls.ConnectionState) error {
			got := fingerprintOf(state.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare([]byte(got), []byte(fingerprint)) == 0 {
				return errors.New("the host is not that of the invitation")
			}
			return nil
		},
	}
}

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
