package identity

import (
	"cmp"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/alloc"
)

// MintRequest describes a development token.
type MintRequest struct {
	// Secret signs the token: at least 32 bytes. Required.
	Secret []byte
	// Identity is the holder of the token. All names are required.
	Identity Identity
	// Valid is the lifetime of the token. Required.
	Valid time.Duration
	// Issuer and Audience are the iss and aud claims. Empty: those of [Development].
	Issuer, Audience string
	// Now is the time of issue.
	Now time.Time
}

// Mint returns a token that [Development] accepts, or an error that wraps
// ErrConfig.
func Mint(m MintRequest) (string, error) {
	if err := checkSecret(m.Secret); err != nil {
		return "", err
	}
	kind := "player"
	if m.Identity.Server {
		kind = "server"
	}
	t := m.Identity.Tenant
	switch {
	case !usable(t.Project) || !usable(t.Environment) || !usable(m.Identity.Player):
		return "", fmt.Errorf("%w: project, environment and player are required", ErrConfig)
	case len(t.Project) > alloc.MaxTenantName || len(t.Environment) > alloc.MaxTenantName:
		return "", fmt.Errorf("%w: project and environment have at most %d bytes", ErrConfig, alloc.MaxTenantName)
	case m.Valid <= 0:
		return "", fmt.Errorf("%w: a token that is valid for %v", ErrConfig, m.Valid)
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss":            cmp.Or(m.Issuer, DevelopmentIssuer),
		"aud":            cmp.Or(m.Audience, DevelopmentAudience),
		"sub":            m.Identity.Player,
		"iat":            m.Now.Unix(),
		"exp":            m.Now.Add(m.Valid).Unix(),
		claimProject:     t.Project,
		claimEnvironment: t.Environment,
		claimKind:        kind,
	}).SignedString(m.Secret)
}
