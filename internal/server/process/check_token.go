package process

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
)

// CheckToken says whether the API accepts a token with these settings, and of each part of it why not. It
// fetches the keys of issuers; the log gets why that fails. Neither has the token.
func CheckToken(ctx context.Context, c *config.Config, token string, log *slog.Logger) (all []Finding) {
	token = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(token), "Bearer "))
	for i, t := range c.Tokens {
		if subtle.ConstantTimeCompare([]byte(token), []byte(t.Secret)) == 1 {
			text := fmt.Sprintf("it is tokens[%d]: project %q, environment %q", i, t.Project, t.Environment)
			if len(t.Regions) > 0 {
				text += fmt.Sprintf(", regions %q", t.Regions)
			}
			return []Finding{{Subject: "token", State: stateOK, Text: text}}
		}
	}
	if len(c.Issuers) == 0 {
		return []Finding{{"token", stateProblem, fmt.Sprintf("its %d bytes are none of the %d tokens, and the settings have no issuers",
			len(token), len(c.Tokens)), "add it to tokens, or its issuer to issuers"}}
	}
	verifier, err := identity.New(identity.Config{Issuers: issuers(c), Logger: log, Wait: checkTimeout})
	if err != nil {
		return []Finding{{"issuers", stateProblem, err.Error(), "change them until ferry check accepts them"}}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go verifier.Run(ctx)
	for _, part := range verifier.Explain(ctx, token) {
		f := Finding{Subject: part.Subject, State: stateOK, Text: part.Text}
		if part.Err != nil {
			f.State, f.Text = stateProblem, strings.TrimPrefix(part.Err.Error(), "identity: ")+"; "+part.Text
			f.Do = tokenAdvice(part.Err)
		}
		all = append(all, f)
	}
	return all
}

func tokenAdvice(err error) string {
	for _, a := range []struct {
		err error
		do  string
	}{
		{identity.ErrMalformed, "copy all of it: three parts with two dots, without quotation marks"},
		{identity.ErrIssuer, "add an entry with this iss to issuers; for Unity Authentication: preset: unity, and the project"},
		{identity.ErrAlgorithm, "the entry of this issuer needs the kind of key that it signs with: jwks_url, or a secret for HS256"},
		{identity.ErrKey, "compare jwks_url with the issuer's: it publishes no such key, or not any more"},
		{identity.ErrSignature, "compare jwks_url or the secret with the issuer's; copy all of the token"},
		{identity.ErrKeysUnavailable, "this machine must reach jwks_url; the line above says what failed"},
		{identity.ErrExpired, "take a new token, as the game does when it signs in; if it is new, set the clock of this machine"},
		{identity.ErrTime, "set the clock of this machine, see ferry check --machine; or the issuer's is wrong"},
		{identity.ErrRules, "compare audience, project and environment of this issuer's entries with the token"},
	} {
		if errors.Is(err, a.err) {
			return a.do
		}
	}
	return ""
}
