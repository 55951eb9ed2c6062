package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// The algorithms that are permitted (RFC 7518, RFC 8037).
const (
	algRS256 = "RS256"
	algPS256 = "PS256"
	algES256 = "ES256"
	algEdDSA = "EdDSA"
	algHS256 = "HS256"
)

var permitted = []string{algRS256, algPS256, algES256, algEdDSA, algHS256}

// The bounds of RSA moduli in bits: shorter ones can be factored, longer ones make
// verification expensive.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

const maxKeys = 64

// maxKeyID bounds a kid in bytes.
const maxKeyID = 256

type publicKey struct {
	id  string
	alg []string // permitted algorithms
	key any      // the type for package jwt
}

type keySet struct {
	keys    []publicKey
	skipped []error // reasons of skipped keys
}

// find returns the key with that id that may be used with alg, and whether the id is
// known. An empty id means the only key.
func (s *keySet) find(id, alg string) (key any, known bool) {
	for i := range s.keys {
		k := &s.keys[i]
		if k.id != id && (id != "" || len(s.keys) > 1) {
			continue
		}
		known = true
		if slices.Contains(k.alg, alg) {
			return k.key, true
		}
	}
	return nil, known
}

// jwk is a published key (RFC 7517, section 4).
type jwk struct {
	Kty    string   `json:"kty"`
	Kid    string   `json:"kid"`
	Alg    string   `json:"alg"`
	Use    string   `json:"use"`
	KeyOps []string `json:"key_ops"`
	Crv    string   `json:"crv"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
}

var (
	errNoKeys = errors.New("has no usable key")
	errUse    = errors.New("is not for signatures")
	errType   = errors.New("has an unsupported type")
	errField  = errors.New("has a missing or invalid member")
)

// parseKeys skips unusable keys; a document without a usable key is an error.
func parseKeys(text []byte) (*keySet, error) {
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("is not a JWKS: %w", err)
	}
	if len(doc.Keys) > maxKeys {
		return nil, fmt.Errorf("has %d keys, more than %d", len(doc.Keys), maxKeys)
	}
	set := &keySet{}
	for i, raw := range doc.Keys {
		k, err := parseKey(raw)
		if err != nil {
			set.skipped = append(set.skipped, fmt.Errorf("key %d (kid %q): %w", i, kidOf(raw), err))
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, errors.Join(append([]error{errNoKeys}, set.skipped...)...)
	}
	return set, nil
}

// kidOf returns the name of a key that may be unusable otherwise.
func kidOf(raw []byte) string {
	var named struct {
		Kid string `json:"kid"`
	}
	_ = json.Unmarshal(raw, &named)
	return named.Kid[:min(len(named.Kid), maxKeyID)]
}

func parseKey(raw []byte) (publicKey, error) {
	var j jwk
	if err := json.Unmarshal(raw, &j); err != nil {
		return publicKey{}, err
	}
	switch {
	case len(j.Kid) > maxKeyID:
		return publicKey{}, fmt.Errorf("kid: %w", errField)
	case j.Use != "" && j.Use != "sig", len(j.KeyOps) > 0 && !slices.Contains(j.KeyOps, "verify"):
		return publicKey{}, errUse
	}
	k := publicKey{id: j.Kid}
	var err error
	switch {
	case j.Kty == "RSA":
		k.alg = []string{algRS256, algPS256}
		k.key, err = j.rsa()
	case j.Kty == "EC" && j.Crv == "P-256":
		k.alg = []string{algES256}
		k.key, err = j.p256()
	case j.Kty == "OKP" && j.Crv == "Ed25519":
		k.alg = []string{algEdDSA}
		k.key, err = j.ed25519()
	default: // includes symmetric keys: a published key is not a secret
		return publicKey{}, errType
	}
	if err != nil {
		return publicKey{}, err
	}
	if j.Alg != "" {
		if !slices.Contains(k.alg, j.Alg) {
			return publicKey{}, fmt.Errorf("alg: %w", errType)
		}
		k.alg = []string{j.Alg}
	}
	return k, nil
}

func (j *jwk) rsa() (*rsa.PublicKey, error) {
	n, errN := decode("n", j.N)
	e, errE := decode("e", j.E)
	if err := errors.Join(errN, errE); err != nil {
		return nil, err
	}
	if len(e) > 4 || len(n) > maxRSABits/8+1 {
		return nil, fmt.Errorf("n, e: %w", errField)
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e).Int64()
	if bits := modulus.BitLen(); bits < minRSABits || bits > maxRSABits {
		return nil, fmt.Errorf("n has %d bits, not %d to %d", bits, minRSABits, maxRSABits)
	}
	if modulus.Bit(0) == 0 || exponent < 3 || exponent%2 == 0 || exponent > 1<<31-1 {
		return nil, fmt.Errorf("n, e: %w", errField)
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent)}, nil
}

func (j *jwk) p256() (*ecdsa.PublicKey, error) {
	const size = 32
	x, errX := decode("x", j.X)
	y, errY := decode("y", j.Y)
	if err := errors.Join(errX, errY); err != nil {
		return nil, err
	}
	if len(x) != size || len(y) != size {
		return nil, fmt.Errorf("x, y: %w", errField)
	}
	point := append(append([]byte{4}, x...), y...) // SEC 1, 2.3.3: uncompressed
	k, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, fmt.Errorf("x, y: %w", errField)
	}
	return k, nil
}

func (j *jwk) ed25519() (ed25519.PublicKey, error) {
	x, err := decode("x", j.X)
	if err == nil && len(x) != ed25519.PublicKeySize {
		err = fmt.Errorf("x: %w", errField)
	}
	return x, err
}

func decode(member, text string) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	switch {
	case text == "":
		return nil, fmt.Errorf("%s is missing: %w", member, errField)
	case err != nil && strings.TrimRight(text, "=") != text:
		return nil, fmt.Errorf("%s ends with the padding =, which RFC 7515 forbids: %w", member, errField)
	case err != nil:
		return nil, fmt.Errorf("%s is not base64url: %w", member, errField)
	}
	return b, nil
}
