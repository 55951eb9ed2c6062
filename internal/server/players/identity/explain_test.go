package identity

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// TestExplain: each part of a token that is wrong is named, also beside others, Verify refuses a token if and
// only if a part is wrong, and no text has the token.
func TestExplain(t *testing.T) {
	t.Parallel()
	p := all(t)
	v := p.newTestVerifier(t, nil)
	past, soon := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	rs := func(claims jwt.MapClaims) string { return sign(t, jwt.SigningMethodRS256, "r", rsaKey, claims) }
	both := with("exp", past)
	both["aud"] = []string{"other", "third"}
	good := rs(good()) // of a length that is not base64 without its last symbol
	for name, c := range map[string]struct {
		token string
		wrong map[string]error
		says  string
	}{
		"good":           {good, nil, `project "game", environment "live", player "anna"`},
		"regions":        {rs(with("regions", []string{"eu", "us"})), nil, `player "anna", regions ["eu" "us"]`},
		"no token":       {"hello", map[string]error{"form": ErrMalformed}, "5 bytes"},
		"nothing":        {"", map[string]error{"form": ErrMalformed}, ""},
		"too large":      {rs(with("x", strings.Repeat("x", MaxToken))), map[string]error{"form": ErrMalformed}, ""},
		"another issuer": {rs(with("iss", "https://other.example")), map[string]error{"issuer": ErrIssuer}, `iss is "https://other.example"`},
		"cut off":        {good[:len(good)-1], map[string]error{"form": ErrMalformed}, "bytes that are not a JSON Web Token"},
		"another key": {sign(t, jwt.SigningMethodRS256, "r", smallRSA, with("x", 1)),
			map[string]error{"signature": ErrSignature}, `alg is "RS256", kid "r"`},
		"no key id":       {sign(t, jwt.SigningMethodRS256, "", rsaKey, with("x", 1)), map[string]error{"signature": ErrKey}, `kid ""`},
		"unknown key":     {sign(t, jwt.SigningMethodRS256, "x", rsaKey, with("x", 1)), map[string]error{"signature": ErrKey}, `kid "x"`},
		"a secret":        {sign(t, jwt.SigningMethodHS256, "r", secret, with("x", 1)), map[string]error{"signature": ErrAlgorithm}, ""},
		"expired":         {rs(with("exp", past)), map[string]error{"time": ErrExpired}, "exp was 1h"},
		"no end":          {rs(with("exp", nil)), map[string]error{"time": ErrTime}, "there is no exp"},
		"no time":         {rs(with("exp", "x")), map[string]error{"time": ErrTime}, "exp is not a time"},
		"not yet":         {rs(with("nbf", soon)), map[string]error{"time": ErrTime}, "nbf is in "},
		"a clock":         {rs(with("iat", soon)), map[string]error{"time": ErrTime}, "iat is in "},
		"audience":        {rs(with("aud", []string{"other"})), map[string]error{"audience and claims": ErrRules}, `aud is ["other"]`},
		"no project":      {rs(with("project", nil)), map[string]error{"audience and claims": ErrRules}, "aud is"},
		"two are wrong":   {rs(both), map[string]error{"time": ErrExpired, "audience and claims": ErrRules}, `aud is ["other" "third"]`},
		"an odd audience": {rs(with("aud", 7)), map[string]error{"audience and claims": ErrRules}, ""},
	} {
		texts, wrong := "", 0
		for _, part := range v.Explain(t.Context(), c.token) {
			texts += part.Text + "\n"
			if want := c.wrong[part.Subject]; !errors.Is(part.Err, want) {
				t.Errorf("%s: %s: %v, want %v", name, part.Subject, part.Err, want)
			}
			if part.Err != nil {
				wrong++
				texts += part.Err.Error() + "\n"
			}
		}
		if _, err := v.Verify(t.Context(), c.token); wrong != len(c.wrong) || (err != nil) != (wrong > 0) {
			t.Errorf("%s: %d parts are wrong, want %d; Verify: %v", name, wrong, len(c.wrong), err)
		}
		if !strings.Contains(texts, c.says) {
			t.Errorf("%s: no %q in\n%s", name, c.says, texts)
		}
		for _, part := range strings.Split(c.token, ".") {
			if part != "" && strings.Contains(texts, part) {
				t.Errorf("%s: the token is in\n%s", name, texts)
			}
		}
	}
}
