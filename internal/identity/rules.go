package identity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// maxPlayer bounds the name of a player, in bytes.
const maxPlayer = 256

// identify returns who the claims are about, by the first rule that fits. The
// error is that of the last rule.
func (i *issuer) identify(claims jwt.MapClaims) (who Identity, err error) {
	for _, rule := range i.rules {
		if who, err = rule.identify(claims); err == nil {
			return who, nil
		}
	}
	return Identity{}, err
}

func (i *Issuer) identify(claims jwt.MapClaims) (Identity, error) {
	audience, err := claims.GetAudience()
	if err != nil {
		return Identity{}, fmt.Errorf("%w: aud is no list of texts", ErrRules)
	}
	ours := func(a string) bool { return slices.Contains(i.Audience, a) }
	if len(i.Audience) > 0 && !slices.ContainsFunc(audience, ours) {
		return Identity{}, fmt.Errorf("%w: its audience is another", ErrRules)
	}
	var who Identity
	if who.Tenant.Project, err = choose(claims, i.ProjectClaim, i.Project); err != nil {
		return Identity{}, err
	}
	if i.EnvironmentAudience != "" {
		who.Tenant.Environment, err = i.fromAudience(audience)
	} else {
		who.Tenant.Environment, err = choose(claims, i.EnvironmentClaim, i.Environment)
	}
	if err != nil {
		return Identity{}, err
	}
	if err := who.Tenant.Validate(); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrRules, err)
	}
	if who.Player, err = text(claims, cmp.Or(i.PlayerClaim, "sub")); err != nil {
		return Identity{}, err
	}
	who.Server, err = i.server(claims)
	return who, err
}

// fromAudience returns the environment that the audience names, once.
func (i *Issuer) fromAudience(audience []string) (found string, err error) {
	for _, a := range audience {
		name, ok := strings.CutPrefix(a, i.EnvironmentAudience)
		switch {
		case !ok:
			continue
		case found != "":
			return "", fmt.Errorf("%w: its audience names two environments", ErrRules)
		}
		found = name
	}
	return is("the environment of its audience", found, i.Environment)
}

// server reports whether the token is a backend's.
func (i *Issuer) server(claims jwt.MapClaims) (bool, error) {
	if i.KindClaim == "" {
		return i.Server, nil
	}
	if _, ok := claims[i.KindClaim]; !ok {
		return i.Server, nil
	}
	switch kind, _ := claims[i.KindClaim].(string); kind {
	case "player":
		return false, nil
	case "server":
		return true, nil
	}
	return false, fmt.Errorf("%w: claim %s is neither player nor server", ErrRules, i.KindClaim)
}

// choose returns a name from a claim, which has to be the wanted one if there is
// one, or the wanted one where no claim is named.
func choose(claims jwt.MapClaims, claim, wanted string) (string, error) {
	if claim == "" {
		return wanted, nil
	}
	name, err := text(claims, claim)
	if err != nil {
		return "", err
	}
	return is("claim "+claim, name, wanted)
}

// is returns a name that is a name, and the wanted one if there is one.
func is(what, name, wanted string) (string, error) {
	if !usable(name) {
		return "", fmt.Errorf("%w: %s is missing or no name", ErrRules, what)
	}
	if wanted != "" && name != wanted {
		return "", fmt.Errorf("%w: %s is another", ErrRules, what)
	}
	return name, nil
}

// text returns a claim that is a name.
func text(claims jwt.MapClaims, claim string) (string, error) {
	name, _ := claims[claim].(string)
	return is("claim "+claim, name, "")
}

// usable reports whether a name can be kept, compared and shown.
func usable(name string) bool {
	return name != "" && len(name) <= maxPlayer && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
