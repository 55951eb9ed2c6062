package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Part is one of the things that Verify requires of a token.
type Part struct {
	Subject string
	Text    string // what the token says of it, never the token itself
	Err     error  // one of the package's errors; nil: it is as it must be
}

// Explain returns all parts of a token, whereas Verify ends at the first error. For an operator who looks at a
// token that was refused.
func (v *Verifier) Explain(ctx context.Context, token string) (all []Part) {
	claims := jwt.MapClaims{}
	t, _, err := v.parser.ParseUnverified(token, claims)
	if err != nil || len(token) > MaxToken {
		return []Part{{"form", fmt.Sprintf("%d bytes that are not a JSON Web Token", len(token)), ErrMalformed}}
	}
	add := func(subject, text string, err error) { all = append(all, Part{subject, text, err}) }

	name, _ := claims.GetIssuer()
	known, ok := v.issuers[name]
	if !ok {
		add("issuer", fmt.Sprintf("iss is %q", name), ErrIssuer)
	} else {
		add("issuer", fmt.Sprintf("iss is %q", name), nil)
		_, err := jwt.NewParser(append([]jwt.ParserOption{jwt.WithoutClaimsValidation()}, signatureRules...)...).
			Parse(token, func(t *jwt.Token) (any, error) { _, key, err := v.keyOf(ctx, t); return key, err })
		if err != nil {
			err = mapError(err)
		}
		kid, _ := t.Header["kid"].(string)
		add("signature", fmt.Sprintf("alg is %q, kid %q", t.Method.Alg(), kid), err)
	}

	err = jwt.NewValidator(v.timeRules()...).Validate(claims)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		err = ErrExpired
	case err != nil:
		err = ErrTime
	}
	add("time", v.timeText(claims), err)

	if ok {
		id, err := known.identify(claims)
		text := fmt.Sprintf("project %q, environment %q, player %q", id.Tenant.Project, id.Tenant.Environment, id.Player)
		if len(id.Regions) > 0 {
			text += fmt.Sprintf(", regions %q", id.Regions)
		}
		if err != nil {
			text = fmt.Sprintf("aud is %q", claims["aud"])
		}
		add("audience and claims", text, err)
	}
	return all
}

func (v *Verifier) timeText(claims jwt.MapClaims) string {
	now := v.cfg.Now()
	text := ""
	for _, c := range []struct {
		name string
		get  func() (*jwt.NumericDate, error)
	}{{"iat", claims.GetIssuedAt}, {"nbf", claims.GetNotBefore}, {"exp", claims.GetExpirationTime}} {
		at, err := c.get()
		switch {
		case err != nil:
			text += c.name + " is not a time, "
		case at == nil && c.name == "exp":
			text += "there is no exp, "
		case at == nil:
		case at.Before(now):
			text += fmt.Sprintf("%s was %v ago, ", c.name, now.Sub(at.Time).Round(time.Second))
		default:
			text += fmt.Sprintf("%s is in %v, ", c.name, at.Sub(now).Round(time.Second))
		}
	}
	return text + "by this machine's clock, which is at " + now.UTC().Format(time.RFC3339)
}
