package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/alloc"
)

var anna = Identity{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"}

func all(t testing.TB) *publisher {
	t.Helper()
	return newPublisher(t, jwks(t, published(t, "r", rsaKey), published(t, "e", ecKey), published(t, "d", edKey)))
}

func TestAlgorithms(t *testing.T) {
	t.Parallel()
	v := all(t).newTestVerifier(t, func(c *Config) { c.Issuers[0].HS256Key = []byte{} }) // no secret, as settings say it
	for _, c := range []struct {
		method jwt.SigningMethod
		id     string
		key    any
		want   error
	}{
		{jwt.SigningMethodRS256, "r", rsaKey, nil},
		{jwt.SigningMethodPS256, "r", rsaKey, nil},
		{jwt.SigningMethodES256, "e", ecKey, nil},
		{jwt.SigningMethodEdDSA, "d", edKey, nil},

		{jwt.SigningMethodRS512, "r", rsaKey, ErrSignature}, // a good signature, and not permitted
		{jwt.SigningMethodPS384, "r", rsaKey, ErrSignature},
		{jwt.SigningMethodNone, "r", jwt.UnsafeAllowNoneSignatureType, ErrSignature},
		{jwt.SigningMethodNone, "", jwt.UnsafeAllowNoneSignatureType, ErrSignature},

		{jwt.SigningMethodRS256, "e", rsaKey, ErrAlgorithm},
		{jwt.SigningMethodRS256, "d", rsaKey, ErrAlgorithm},
		{jwt.SigningMethodES256, "r", ecKey, ErrAlgorithm},
		{jwt.SigningMethodES256, "d", ecKey, ErrAlgorithm},
		{jwt.SigningMethodEdDSA, "r", edKey, ErrAlgorithm},
		{jwt.SigningMethodEdDSA, "e", edKey, ErrAlgorithm},
		{jwt.SigningMethodRS256, "r", smallRSA, ErrSignature},
		{jwt.SigningMethodRS256, "", rsaKey, ErrKey}, // three keys, and no word of which
		{jwt.SigningMethodRS256, "R", rsaKey, ErrKey},
		{jwt.SigningMethodRS256, strings.Repeat("r", maxKeyID+1), rsaKey, ErrKey},
	} {
		id, err := v.Verify(t.Context(), sign(t, c.method, c.id, c.key, good()))
		want := Identity{}
		if c.want == nil {
			want = anna
		}
		if !errors.Is(err, c.want) || !reflect.DeepEqual(id, want) {
			t.Errorf("%s with key %.10q: %+v, %v, want %v", c.method.Alg(), c.id, id, err, c.want)
		}
	}
}

// TestConfusion checks that a public key in any encoding is not accepted as a secret.
func TestConfusion(t *testing.T) {
	t.Parallel()
	p := all(t)
	v := p.newTestVerifier(t, nil)
	der, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	inPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	for name, secret := range map[string][]byte{
		"PEM": inPEM, "DER": der, "modulus": rsaKey.N.Bytes(), "x": edKey.Public().(ed25519.PublicKey),
	} {
		for _, id := range []string{"r", "d", ""} {
			if _, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, id, secret, good())); !errors.Is(err, ErrAlgorithm) {
				t.Errorf("%s as a secret, kid %q: %v", name, id, err)
			}
		}
	}
	if _, err := New(Config{Issuers: []Issuer{Development(inPEM)}}); !errors.Is(err, ErrConfig) {
		t.Errorf("PEM as a secret in the configuration: %v", err)
	}
}

// TestIssuersAreSeparate checks that the secret and the keys of one issuer do not sign
// tokens of another.
func TestIssuersAreSeparate(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte("s"), MinSecret)
	p := all(t)
	v := p.newTestVerifier(t, func(c *Config) {
		c.Issuers = append(c.Issuers, Development(secret))
	})
	dev := with("iss", DevelopmentIssuer)
	dev["aud"] = DevelopmentAudience
	if id, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, "", secret, dev)); err != nil || !reflect.DeepEqual(id, anna) {
		t.Errorf("HS256 of its issuer: %+v, %v", id, err)
	}
	for name, token := range map[string]string{
		"the secret for published keys": sign(t, jwt.SigningMethodHS256, "r", secret, good()),
		"published keys for the secret": sign(t, jwt.SigningMethodRS256, "r", rsaKey, dev),
		"HS512 with the secret":         sign(t, jwt.SigningMethodHS512, "", secret, dev),
		"another secret":                sign(t, jwt.SigningMethodHS256, "", secret[1:], dev),
	} {
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrAlgorithm) && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	v := all(t).newTestVerifier(t, nil)
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	// All are at least 10 s off the limit, so that a slow machine changes nothing.
	for name, c := range map[string]struct {
		claims jwt.MapClaims
		want   error
	}{
		"good":                     {good(), nil},
		"one of several audiences": {with("aud", []string{"x", "relay"}), nil},
		"expired within leeway":    {with("exp", at(-20*time.Second)), nil},
		"expired":                  {with("exp", at(-70*time.Second)), ErrExpired},
		"no exp":                   {with("exp", nil), ErrTime},
		"exp 0":                    {with("exp", 0), ErrTime},
		"exp is a text":            {with("exp", "9999999999"), ErrTime},
		"nbf within leeway":        {with("nbf", at(20*time.Second)), nil},
		"nbf":                      {with("nbf", at(90*time.Second)), ErrTime},
		"iat within leeway":        {with("iat", at(20*time.Second)), nil},
		"iat":                      {with("iat", at(90*time.Second)), ErrTime},
		"no iat":                   {with("iat", nil), nil},
		"no issuer":                {with("iss", nil), ErrIssuer},
		"another issuer":           {with("iss", iss+"/"), ErrIssuer},
		"issuer is a list":         {with("iss", []string{iss}), ErrIssuer},
		"no audience":              {with("aud", nil), ErrRules},
		"another audience":         {with("aud", "relay2"), ErrRules},
		"audience in capitals":     {with("aud", "RELAY"), ErrRules},
		"audience with numbers":    {with("aud", []any{"relay", 1}), ErrRules},
		"no player":                {with("sub", nil), ErrRules},
		"player is empty":          {with("sub", ""), ErrRules},
		"player is a number":       {with("sub", 7), ErrRules},
		"player is long":           {with("sub", strings.Repeat("x", 257)), ErrRules},
		"player with a NUL":        {with("sub", "a\x00b"), ErrRules},
		"no project":               {with("project", nil), ErrRules},
		"project is long":          {with("project", strings.Repeat("x", 57)), ErrRules},
		"project with a line":      {with("project", "a\nb"), ErrRules},
		"no environment":           {with("environment", nil), ErrRules},
		"regions: none":            {with("regions", []string{}), ErrRules},
		"regions: a text":          {with("regions", "eu"), ErrRules},
		"regions: a number in it":  {with("regions", []any{"eu", 1}), ErrRules},
		"regions: an empty name":   {with("regions", []string{"eu", ""}), ErrRules},
		"regions: null":            {with("regions", json.RawMessage("null")), ErrRules},
	} {
		id, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodES256, "e", ecKey, c.claims))
		if !errors.Is(err, c.want) || c.want == nil && (err != nil || !reflect.DeepEqual(id, anna)) {
			t.Errorf("%s: %+v, %v, want %v", name, id, err, c.want)
		}
	}
	// As floats, these two people would be one.
	for _, sub := range []int64{1<<53 + 1, 1 << 53} {
		_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodES256, "e", ecKey, with("sub", sub)))
		if !errors.Is(err, ErrRules) || !strings.Contains(err.Error(), "claim sub is a number, and must be a string") {
			t.Errorf("sub %d: %v", sub, err)
		}
	}
}

// TestTampered checks that no byte of a token can be changed, removed or added.
func TestTampered(t *testing.T) {
	t.Parallel()
	v := all(t).newTestVerifier(t, nil)
	token := sign(t, jwt.SigningMethodEdDSA, "d", edKey, good())
	for i := range token {
		for _, other := range []byte{token[i] ^ 1, token[i] ^ 2, 'A', '.', ' '} {
			if other == token[i] {
				continue
			}
			changed := token[:i] + string(rune(other)) + token[i+1:]
			if id, err := v.Verify(t.Context(), changed); err == nil {
				t.Fatalf("byte %d changed to %q: %+v", i, other, id)
			}
		}
		if _, err := v.Verify(t.Context(), token[:i]); err == nil {
			t.Fatalf("cut off after %d bytes: let in", i)
		}
	}
	for _, added := range []string{token + "A", token + ".", token + "=", " " + token, token + "." + token} {
		if _, err := v.Verify(t.Context(), added); err == nil {
			t.Errorf("let in with %d bytes more", len(added)-len(token))
		}
	}
}

func TestShapes(t *testing.T) {
	t.Parallel()
	v := all(t).newTestVerifier(t, nil)
	critical := jwt.NewWithClaims(jwt.SigningMethodEdDSA, good())
	critical.Header["kid"], critical.Header["crit"] = "d", []string{"b64"}
	numbered := jwt.NewWithClaims(jwt.SigningMethodEdDSA, good())
	numbered.Header["kid"] = 1
	huge := with("more", strings.Repeat("x", MaxToken))
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"empty":           {"", ErrMalformed},
		"dots":            {"..", ErrMalformed},
		"many dots":       {strings.Repeat(".", MaxToken), ErrMalformed},
		"huge":            {sign(t, jwt.SigningMethodEdDSA, "d", edKey, huge), ErrMalformed},
		"no token":        {"a-static-token-of-a-backend", ErrMalformed},
		"critical":        {signed(t, critical, edKey), ErrMalformed},
		"kid is a number": {signed(t, numbered, edKey), ErrKey},
		"null and null":   {b64([]byte("null")) + "." + b64([]byte("null")) + ".", ErrAlgorithm},
	} {
		if _, err := v.Verify(t.Context(), c.token); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestNothingIsLogged: neither errors nor the log contain text of a token or secret.
func TestNothingIsLogged(t *testing.T) {
	t.Parallel()
	const canary = "canary0123456789canary0123456789"
	var log bytes.Buffer
	v := all(t).newTestVerifier(t, func(c *Config) {
		c.Issuers = append(c.Issuers, Development([]byte(canary)))
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for _, claims := range []jwt.MapClaims{with("iss", canary), with("aud", canary), with("sub", canary+"\x00"),
		with("project", canary+canary), with("exp", canary)} {
		for _, token := range []string{sign(t, jwt.SigningMethodEdDSA, "d", edKey, claims), sign(t, jwt.SigningMethodEdDSA, canary, edKey,
			claims), canary + "." + canary + "." + canary} {
			_, err := v.Verify(t.Context(), token)
			if err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("%v", err)
			}
		}
	}
	if strings.Contains(log.String(), canary) || log.Len() == 0 {
		t.Errorf("the log: %s", log.String())
	}
}

func TestVerifyStopsWithItsCaller(t *testing.T) {
	t.Parallel()
	p := all(t)
	v, err := New(Config{Issuers: []Issuer{own(p.URL)}, Transport: p.transport(), Wait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(ctx, sign(t, jwt.SigningMethodEdDSA, "d", edKey, good())); !errors.Is(err, ErrKeysUnavailable) {
		t.Errorf("without Run, and with a cancelled caller: %v", err)
	}
	if p.called() != 0 {
		t.Error("a request fetched by itself")
	}
}
