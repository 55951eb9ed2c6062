package identity

import (
	"bytes"
	"cmp"
	"fmt"
)

// MinSecret is the least length of an HS256 secret in bytes (RFC 7518, 3.2).
const MinSecret = 32

// Issuer is one rule of who is trusted for which tokens. Several rules may name
// one issuer, with the same keys: the first one that fits a token counts.
type Issuer struct {
	// Issuer is the iss of the tokens, byte for byte. Required.
	Issuer string
	// Audience are the values of aud that mean us; one has to be there. It is
	// required, unless EnvironmentAudience is.
	Audience []string
	// JWKSURL is where the issuer publishes its keys: https, or http on loopback.
	// Exactly one of JWKSURL and HS256Key is given.
	JWKSURL string
	// HS256Key is a secret of at least 32 bytes. Whoever has it makes tokens.
	HS256Key []byte
	// ProjectClaim names the claim with the project. Project is the project of
	// all tokens; with both, the claim has to be that project.
	ProjectClaim, Project string
	// EnvironmentClaim names the claim with the environment. Environment is that
	// of all tokens; with both, the claim has to be that environment.
	EnvironmentClaim, Environment string
	// EnvironmentAudience, in place of EnvironmentClaim, is the prefix of the
	// value of aud that holds the environment. There has to be one such value.
	EnvironmentAudience string
	// PlayerClaim names the claim with the player; empty: sub.
	PlayerClaim string
	// KindClaim names the claim that says "player" or "server". Server is the
	// kind of tokens without it, and of all if none is named.
	KindClaim string
	Server    bool
}

// Unity returns the rule for tokens of Unity Authentication of one project. What
// of it is not verified is said in the package's documentation.
func Unity(project string) Issuer {
	return Issuer{
		Issuer:              "https://player-auth.services.api.unity.com",
		JWKSURL:             "https://player-auth.services.api.unity.com/.well-known/jwks.json",
		ProjectClaim:        "project_id",
		Project:             project,
		EnvironmentAudience: "envName:",
	}
}

// The issuer and the audience of tokens that [Mint] makes, unless said otherwise.
const (
	DevelopmentIssuer   = "ferry-dev"
	DevelopmentAudience = "ferry"
)

// The claims of development tokens besides sub.
const (
	claimProject     = "project"
	claimEnvironment = "environment"
	claimKind        = "kind"
)

// Development returns the rule for tokens that [Mint] makes with a secret.
func Development(secret []byte) Issuer {
	return Issuer{
		Issuer: DevelopmentIssuer, Audience: []string{DevelopmentAudience}, HS256Key: secret,
		ProjectClaim: claimProject, EnvironmentClaim: claimEnvironment, KindClaim: claimKind,
	}
}

// Or returns i with what it leaves empty taken from preset. What excludes each
// other is taken from one of them.
func (i Issuer) Or(preset Issuer) Issuer {
	i.Issuer = cmp.Or(i.Issuer, preset.Issuer)
	if i.Audience == nil {
		i.Audience = preset.Audience
	}
	if i.JWKSURL == "" && len(i.HS256Key) == 0 {
		i.JWKSURL, i.HS256Key = preset.JWKSURL, preset.HS256Key
	}
	i.ProjectClaim, i.Project = cmp.Or(i.ProjectClaim, preset.ProjectClaim), cmp.Or(i.Project, preset.Project)
	if i.EnvironmentClaim == "" && i.EnvironmentAudience == "" {
		i.EnvironmentClaim, i.EnvironmentAudience = preset.EnvironmentClaim, preset.EnvironmentAudience
	}
	i.Environment = cmp.Or(i.Environment, preset.Environment)
	i.PlayerClaim = cmp.Or(i.PlayerClaim, preset.PlayerClaim)
	i.KindClaim = cmp.Or(i.KindClaim, preset.KindClaim)
	i.Server = i.Server || preset.Server
	return i
}

func (i Issuer) validate() error {
	switch {
	case i.Issuer == "":
		return fmt.Errorf("%w: issuer is required", ErrConfig)
	case (i.JWKSURL == "") == (len(i.HS256Key) == 0):
		return fmt.Errorf("%w: needs either jwks_url or an HS256 key, and not both", ErrConfig)
	case len(i.Audience) == 0 && i.EnvironmentAudience == "":
		return fmt.Errorf("%w: audience is required: without it a token that the issuer made for somebody else would do", ErrConfig)
	case i.ProjectClaim == "" && i.Project == "":
		return fmt.Errorf("%w: needs project_claim or project", ErrConfig)
	case i.EnvironmentClaim == "" && i.EnvironmentAudience == "" && i.Environment == "":
		return fmt.Errorf("%w: needs environment_claim or environment", ErrConfig)
	case i.EnvironmentClaim != "" && i.EnvironmentAudience != "":
		return fmt.Errorf("%w: environment_claim and environment_audience exclude each other", ErrConfig)
	case i.Issuer == Unity("").Issuer && i.Project == "":
		return fmt.Errorf("%w: project is required: tokens of all of Unity's customers come from that issuer", ErrConfig)
	}
	for _, a := range i.Audience {
		if a == "" {
			return fmt.Errorf("%w: an audience is empty", ErrConfig)
		}
	}
	if i.JWKSURL != "" {
		return nil
	}
	return checkSecret(i.HS256Key)
}

// checkSecret refuses what is no secret. A public key would be the classical
// way to let everybody make tokens.
func checkSecret(secret []byte) error {
	switch {
	case len(secret) < MinSecret:
		return fmt.Errorf("%w: an HS256 key has at least %d bytes: openssl rand -hex 32", ErrConfig, MinSecret)
	case bytes.Contains(secret, []byte("-----BEGIN ")):
		return fmt.Errorf("%w: an HS256 key is a secret, not a file in PEM", ErrConfig)
	}
	return nil
}
