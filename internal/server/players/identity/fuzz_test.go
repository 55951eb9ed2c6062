package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// FuzzVerify checks arbitrary tokens. Only the tokens of the seeds are accepted, and
// every error is one of the package's, without text of the token.
func FuzzVerify(f *testing.F) {
	p := all(f)
	v := p.newTestVerifier(f, func(c *Config) { c.Issuers = append(c.Issuers, Development(secret)) })
	dev := with("iss", DevelopmentIssuer)
	dev["aud"] = DevelopmentAudience
	// The workers of a fuzz run share the secret, and have to know this token.
	dev["iat"], dev["exp"] = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	known := []string{
		sign(f, jwt.SigningMethodHS256, "", secret, dev),
		sign(f, jwt.SigningMethodRS256, "r", rsaKey, good()),
		sign(f, jwt.SigningMethodPS256, "r", rsaKey, good()),
		sign(f, jwt.SigningMethodES256, "e", ecKey, good()),
		sign(f, jwt.SigningMethodEdDSA, "d", edKey, good()),
	}
	for _, token := range known {
		if _, err := v.Verify(f.Context(), token); err != nil {
			f.Fatal(err)
		}
		f.Add(token)
		f.Add(token[:len(token)-1])
		parts := strings.Split(token, ".")
		f.Add(b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".")
		f.Add(b64([]byte(`{"alg":"HS256","kid":"r"}`)) + "." + parts[1] + "." + parts[2])
		f.Add(b64([]byte(`{"alg":"RS256","kid":["r"],"crit":[]}`)) + "." + b64([]byte(`{"iss":{},"aud":[[]],"exp":1e999}`)) + "." + parts[2])
	}
	own := []error{ErrMalformed, ErrAlgorithm, ErrIssuer, ErrKey, ErrSignature, ErrExpired, ErrTime, ErrRules}
	f.Fuzz(func(t *testing.T, token string) {
		id, err := v.Verify(t.Context(), token)
		if err == nil {
			// ECDSA signatures have a second form each, which does not change what
			// was signed.
			if !slices.ContainsFunc(known, func(k string) bool { return signedPart(k) == signedPart(token) }) {
				t.Fatalf("accepted: %+v with %q", id, token)
			}
			return
		}
		if !reflect.DeepEqual(id, Identity{}) || !slices.ContainsFunc(own, func(e error) bool { return errors.Is(err, e) }) {
			t.Fatalf("%+v, %v", id, err)
		}
		if len(token) > 30 && strings.Contains(err.Error(), token) {
			t.Fatalf("the error quotes the token: %v", err)
		}
	})
}

func signedPart(token string) string { return token[:max(strings.LastIndex(token, "."), 0)] }

// FuzzKeys parses arbitrary documents. The resulting keys satisfy the rules and can be
// used without a panic.
func FuzzKeys(f *testing.F) {
	f.Add(jwks(f, published(f, "r", rsaKey), published(f, "e", ecKey), published(f, "d", edKey)))
	f.Add(jwks(f, published(f, "w", smallRSA)))
	for _, text := range []string{
		``, `null`, `{"keys":[]}`, `{"keys":[null,{},{"kty":1}]}`,
		`{"keys":[{"kty":"RSA","n":"","e":""},{"kty":"EC","crv":"P-256","x":"","y":""},{"kty":"OKP","crv":"Ed25519","x":""}]}`,
		`{"keys":[{"kty":"oct","k":"AAAA","alg":"HS256"},{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","alg":"EdDSA"}]}`,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := parseKeys(text)
		if (set == nil) == (err == nil) {
			t.Fatalf("%v, %v", set, err)
		}
		if err != nil {
			return
		}
		if n := len(set.keys); n == 0 || n > maxKeys {
			t.Fatalf("%d keys", n)
		}
		for _, k := range set.keys {
			for _, alg := range k.alg {
				if alg == algHS256 || !slices.Contains(permitted, alg) {
					t.Fatalf("a published key for %s", alg)
				}
				_ = jwt.GetSigningMethod(alg).Verify("a.b", make([]byte, 64), k.key)
			}
			switch key := k.key.(type) {
			case *rsa.PublicKey:
				if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
					t.Fatalf("%d bits", bits)
				}
			case *ecdsa.PublicKey:
				if _, err := key.Bytes(); err != nil {
					t.Fatal(err)
				}
			case ed25519.PublicKey:
			default:
				t.Fatalf("a key of type %T", key)
			}
		}
	})
}
