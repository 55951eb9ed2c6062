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
	"slices"

	"github.com/go-jose/go-jose/v4"
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
			set.skipped = append(set.skipped, fmt.Errorf("key %d (kid %q): %w", i, k.id, err))
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, errors.Join(append([]error{errNoKeys}, set.skipped...)...)
	}
	return set, nil
}

// parseKey returns the id of a key also if the key is unusable.
func parseKey(raw []byte) (publicKey, error) {
	var named struct {
		Kid    string   `json:"kid"`
		KeyOps []string `json:"key_ops"`
		X      string   `json:"x"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return publicKey{}, err
	}
	k := publicKey{id: named.Kid[:min(len(named.Kid), maxKeyID)]}
	var j jose.JSONWebKey
	switch err := json.Unmarshal(raw, &j); {
	case errors.Is(err, jose.ErrUnsupportedKeyType):
		return k, errType
	case err != nil:
		return k, fmt.Errorf("%w: %w", errField, err)
	case len(j.KeyID) > maxKeyID:
		return k, fmt.Errorf("kid: %w", errField)
	case j.Use != "" && j.Use != "sig", len(named.KeyOps) > 0 && !slices.Contains(named.KeyOps, "verify"):
		return k, errUse
	}
	switch key := j.Key.(type) {
	case *rsa.PublicKey:
		if err := checkRSA(key); err != nil {
			return k, err
		}
		k.alg = []string{algRS256, algPS256}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return k, errType
		}
		k.alg = []string{algES256}
	case ed25519.PublicKey:
		if len(named.X) != base64.RawURLEncoding.EncodedLen(ed25519.PublicKeySize) { // The library pads and cuts it.
			return k, fmt.Errorf("x: %w", errField)
		}
		k.alg = []string{algEdDSA}
	default: // includes symmetric keys: a published key is not a secret
		return k, errType
	}
	if j.Algorithm != "" {
		if !slices.Contains(k.alg, j.Algorithm) {
			return k, fmt.Errorf("alg: %w", errType)
		}
		k.alg = []string{j.Algorithm}
	}
	k.key = j.Key
	return k, nil
}

func checkRSA(key *rsa.PublicKey) error {
	if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
		return fmt.Errorf("n has %d bits, not %d to %d", bits, minRSABits, maxRSABits)
	}
	if key.N.Bit(0) == 0 || key.E < 3 || key.E%2 == 0 || key.E > 1<<31-1 {
		return fmt.Errorf("n, e: %w", errField)
	}
	return nil
}
