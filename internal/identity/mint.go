package identity

import (
	"cmp"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/alloc"
)

// Minting is a development token that somebody wants.
type Minting struct {
	// Secret signs it, at least 32 bytes. Required.
	Secret []byte
	// Who is who the token is about. All names are required.
	Who Identity
	// For is how long it is valid. Required.
	For time.Duration
	// Issuer and Audience are those of [Development] if they are empty.
	Issuer, Audience string
	// Now is the time of issue.
	Now time.Time
}

// Mint returns a token that [Development] lets in, or an error that wraps
// ErrConfig.
func Mint(m Minting) (string, error) {
	if err := checkSecret(m.Secret); err != nil {
		return "", err
	}
	kind := "player"
	if m.Who.Server {
		kind = "server"
	}
	t := m.Who.Tenant
	switch {
	case !usable(t.Project) || !usable(t.Environment) || !usable(m.Who.Player):
		return "", fmt.Errorf("%w: project, environment and player are required", ErrConfig)
	case len(t.Project) > alloc.MaxTenantName || len(t.Environment) > alloc.MaxTenantName:
		return "", fmt.Errorf("%w: project and environment have at most %d bytes", ErrConfig, alloc.MaxTenantName)
	case m.For <= 0:
		return "", fmt.Errorf("%w: a token that is valid for %v", ErrConfig, m.For)
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss":            cmp.Or(m.Issuer, DevelopmentIssuer),
		"aud":            cmp.Or(m.Audience, DevelopmentAudience),
		"sub":            m.Who.Player,
		"iat":            m.Now.Unix(),
		"exp":            m.Now.Add(m.For).Unix(),
		claimProject:     t.Project,
		claimEnvironment: t.Environment,
		claimKind:        kind,
	}).SignedString(m.Secret)
}
