package identity

import (
	"crypto/elliptic"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
)

// changed returns a published key with one member changed, or removed if value is nil.
func changed(k map[string]any, member string, value any) map[string]any {
	if k[member] = value; value == nil {
		delete(k, member)
	}
	return k
}

func TestKeys(t *testing.T) {
	t.Parallel()
	rsa := func() map[string]any { return published(t, "k", rsaKey) }
	ec := func() map[string]any { return published(t, "k", ecKey) }
	ed := func() map[string]any { return published(t, "k", edKey) }
	number := func(n *big.Int) string { return b64(n.Bytes()) }
	even := new(big.Int).Lsh(big.NewInt(1), 2047)
	odd := new(big.Int).SetBit(new(big.Int).Lsh(big.NewInt(1), maxRSABits-1), 0, 1)
	outside := b64(append(make([]byte, 31), 5))
	for name, c := range map[string]struct {
		key  map[string]any
		algs string // that it may be used with; empty: skipped
	}{
		"RSA":                     {rsa(), "RS256 PS256"},
		"P-256":                   {ec(), "ES256"},
		"Ed25519":                 {ed(), "EdDSA"},
		"for signatures":          {changed(rsa(), "use", "sig"), "RS256 PS256"},
		"to verify":               {changed(rsa(), "key_ops", []string{"verify"}), "RS256 PS256"},
		"RSA for RS256":           {changed(rsa(), "alg", "RS256"), "RS256"},
		"RSA for PS256":           {changed(rsa(), "alg", "PS256"), "PS256"},
		"8192 bits":               {changed(rsa(), "n", number(odd)), "RS256 PS256"},
		"without a name":          {changed(ec(), "kid", nil), "ES256"},
		"for encryption":          {changed(rsa(), "use", "enc"), ""},
		"to sign":                 {changed(rsa(), "key_ops", []string{"sign"}), ""},
		"RSA for RS512":           {changed(rsa(), "alg", "RS512"), ""},
		"RSA for HS256":           {changed(rsa(), "alg", "HS256"), ""},
		"RSA for none":            {changed(rsa(), "alg", "none"), ""},
		"EC for RS256":            {changed(ec(), "alg", "RS256"), ""},
		"1024 bits":               {published(t, "k", smallRSA), ""},
		"8193 bits":               {changed(rsa(), "n", number(new(big.Int).Add(new(big.Int).Lsh(odd, 1), big.NewInt(1)))), ""},
		"much longer":             {changed(rsa(), "n", strings.Repeat("_", 10000)), ""},
		"an even modulus":         {changed(rsa(), "n", number(even)), ""},
		"exponent 1":              {changed(rsa(), "e", "AQ"), ""},
		"exponent 2":              {changed(rsa(), "e", "Ag"), ""},
		"no exponent":             {changed(rsa(), "e", nil), ""},
		"a huge exponent":         {changed(rsa(), "e", "AQAAAAE"), ""},
		"exponent of 32 bits":     {changed(rsa(), "e", "_____w"), ""},
		"no modulus":              {changed(rsa(), "n", nil), ""},
		"padded base64":           {changed(rsa(), "e", "AQ=="), ""},
		"P-384":                   {changed(ec(), "crv", elliptic.P384().Params().Name), ""},
		"not on the curve":        {changed(ec(), "y", outside), ""},
		"at infinity":             {changed(changed(ec(), "x", b64(make([]byte, 32))), "y", b64(make([]byte, 32))), ""},
		"half a point":            {changed(ec(), "y", nil), ""},
		"a long coordinate":       {changed(ec(), "x", b64(make([]byte, 33))), ""},
		"X25519":                  {changed(ed(), "crv", "X25519"), ""},
		"a short Ed25519 key":     {changed(ed(), "x", b64(make([]byte, 31))), ""},
		"a secret":                {map[string]any{"kty": "oct", "kid": "k", "k": b64(make([]byte, 32)), "alg": "HS256"}, ""},
		"no type":                 {map[string]any{"kid": "k"}, ""},
		"a long name":             {changed(ec(), "kid", strings.Repeat("k", maxKeyID+1)), ""},
		"a name that is a number": {changed(ec(), "kid", 7), ""},
	} {
		spare := published(t, "spare", edKey)
		set, err := parseKeys(jwks(t, c.key, spare))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		for _, k := range set.keys[:len(set.keys)-1] {
			got = strings.Join(k.alg, " ")
		}
		if got != c.algs || len(set.keys)+len(set.skipped) != 2 {
			t.Errorf("%s: used for %q, want %q; skipped: %v", name, got, c.algs, set.skipped)
		}
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	many := make([]map[string]any, maxKeys+1)
	for i := range many {
		many[i] = published(t, fmt.Sprint(i), edKey)
	}
	if set, err := parseKeys(jwks(t, many[1:]...)); err != nil || len(set.keys) != maxKeys {
		t.Errorf("%d keys: %v", maxKeys, err)
	}
	if _, err := parseKeys(jwks(t, many...)); err == nil {
		t.Errorf("%d keys: no error", len(many))
	}
	for _, text := range []string{"", "null", "{}", "[]", `{"keys":null}`, `{"keys":{}}`, `{"keys":[]}`, `{"keys":[null,1,"x",[],{}]}`} {
		if set, err := parseKeys([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, set)
		}
	}
	if _, err := parseKeys(jwks(t, published(t, "w", smallRSA))); !errors.Is(err, errNoKeys) || !strings.Contains(err.Error(), "1024 bits") {
		t.Errorf("nothing that can be used: %v", err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	one, _ := parseKeys(jwks(t, published(t, "", edKey)))
	two, _ := parseKeys(jwks(t, published(t, "a", edKey), published(t, "b", ecKey)))
	twins, _ := parseKeys(jwks(t, published(t, "a", edKey), published(t, "a", ecKey)))
	for _, c := range []struct {
		set          *keySet
		id, alg      string
		found, known bool
	}{
		{one, "", "EdDSA", true, true}, {one, "", "ES256", false, true}, {one, "a", "EdDSA", false, false},
		{two, "a", "EdDSA", true, true}, {two, "a", "ES256", false, true}, {two, "b", "ES256", true, true},
		{two, "", "EdDSA", false, false}, {two, "c", "EdDSA", false, false},
		{twins, "a", "EdDSA", true, true}, {twins, "a", "ES256", true, true}, {twins, "a", "RS256", false, true},
	} {
		if key, known := c.set.find(c.id, c.alg); (key != nil) != c.found || known != c.known {
			t.Errorf("%d keys, %q for %s: %v, %v", len(c.set.keys), c.id, c.alg, key, known)
		}
	}
}

// TestKeyFaults: a key that cannot be used is named, and what is wrong with it.
func TestKeyFaults(t *testing.T) {
	t.Parallel()
	padded := published(t, "signing-2026", rsaKey)
	padded["n"] = padded["n"].(string) + "="
	for want, key := range map[string]map[string]any{
		`key 0 (kid "signing-2026"): has a missing or invalid member: illegal base64 data`: padded,
		`key 0 (kid "k"): has a missing or invalid member: go-jose/go-jose: invalid RSA key, missing n/e values`: changed(
			published(t, "k", rsaKey), "n", nil),
		`key 0 (kid "k"): has a missing or invalid member: illegal base64 data at input byte 1`: changed(published(t, "k", ecKey), "y", "a+b/"),
		`key 0 (kid "k"): has a missing or invalid member: illegal base64 data at input byte 0`: changed(published(t, "k", edKey), "x", "ü"),
		`key 0 (kid "k"): x: has a missing or invalid member`:                                   changed(published(t, "k", edKey), "x", "AA"),
	} {
		if _, err := parseKeys(jwks(t, key)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
