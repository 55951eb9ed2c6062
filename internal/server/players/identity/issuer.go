package identity

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/golang-jwt/jwt/v5"
)

// MinSecret is the least length of an HS256 secret in bytes (RFC 7518, 3.2).
const MinSecret = 32

// Issuer is a rule for the tokens of one issuer. Several rules may have the same
// issuer, with the same keys: the first one that fits a token applies.
type Issuer struct {
	// Issuer is the iss of the tokens, byte for byte. Required.
	Issuer string
	// Audience are the accepted values of aud; a token must have one. It is required
	// unless EnvironmentAudience is set.
	Audience []string
	// JWKSURL is the address of the published keys: https, or http on loopback.
	// Exactly one of JWKSURL and HS256Key is required.
	JWKSURL  string
	HS256Key []byte
	// ProjectClaim names the claim with the project. Project is the project of
	// all tokens; with both, the claim must be equal to Project.
	ProjectClaim, Project string
	// ProjectAudience is the prefix of the value of aud that has the project. A token then needs no
	// ProjectClaim; what it has of both must be the same.
	ProjectAudience string
	// EnvironmentClaim names the claim with the environment. Environment is that
	// of all tokens; with both, the claim must be equal to Environment.
	EnvironmentClaim, Environment string
	// EnvironmentAudience, in place of EnvironmentClaim, is the prefix of the
	// value of aud that has the environment. A token must have exactly one such value.
	EnvironmentAudience string
	// KindClaim names the claim whose value is "player" or "server". Server is the kind
	// of tokens without that claim.
	KindClaim string
	Server    bool
}

// Unity returns the rule for tokens of Unity Authentication of one project. Known from
// the published SDK: sub is the player's id, aud is a list with envName:<environment> and
// upid:<project>, RS256. Not verified with a real token. There is no public evidence of the
// claim project_id, so a token may lack it. All of Unity's customers share that issuer, so the
// project must be configured.
func Unity(project string) Issuer {
	return Issuer{
		Issuer:              "https://player-auth.services.api.unity.com",
		JWKSURL:             "https://player-auth.services.api.unity.com/.well-known/jwks.json",
		ProjectClaim:        "project_id",
		ProjectAudience:     "upid:",
		Project:             project,
		EnvironmentAudience: "envName:",
	}
}

const (
	DevelopmentIssuer   = "ferry-dev"
	DevelopmentAudience = "ferry"
)

const (
	claimProject     = "project"
	claimEnvironment = "environment"
	claimKind        = "kind"
	claimRegions     = "regions" // of every issuer's tokens
)

// Development returns the rule for tokens of [Mint].
func Development(secret []byte) Issuer {
	return Issuer{
		Issuer: DevelopmentIssuer, Audience: []string{DevelopmentAudience}, HS256Key: secret,
		ProjectClaim: claimProject, EnvironmentClaim: claimEnvironment, KindClaim: claimKind,
	}
}

// Or returns i with empty fields set from preset. Of fields that exclude each other
// only one is set.
func (i Issuer) Or(preset Issuer) Issuer {
	i.Issuer = cmp.Or(i.Issuer, preset.Issuer)
	if i.Audience == nil {
		i.Audience = preset.Audience
	}
	if i.JWKSURL == "" && len(i.HS256Key) == 0 {
		i.JWKSURL, i.HS256Key = preset.JWKSURL, preset.HS256Key
	}
	if i.ProjectClaim == "" && i.ProjectAudience == "" {
		i.ProjectClaim, i.ProjectAudience = preset.ProjectClaim, preset.ProjectAudience
	}
	i.Project = cmp.Or(i.Project, preset.Project)
	if i.EnvironmentClaim == "" && i.EnvironmentAudience == "" {
		i.EnvironmentClaim, i.EnvironmentAudience = preset.EnvironmentClaim, preset.EnvironmentAudience
	}
	i.Environment = cmp.Or(i.Environment, preset.Environment)
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
		return fmt.Errorf("%w: audience is required: without it the tokens of the issuer for other audiences would be accepted", ErrConfig)
	case i.ProjectClaim == "" && i.Project == "":
		return fmt.Errorf("%w: needs project_claim or project", ErrConfig)
	case i.EnvironmentClaim == "" && i.EnvironmentAudience == "" && i.Environment == "":
		return fmt.Errorf("%w: needs environment_claim or environment", ErrConfig)
	case i.EnvironmentClaim != "" && i.EnvironmentAudience != "":
		return fmt.Errorf("%w: environment_claim and environment_audience exclude each other", ErrConfig)
	case i.Issuer == Unity("").Issuer && i.Project == "":
		return fmt.Errorf("%w: project is required: all customers of Unity share that issuer", ErrConfig)
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

// checkSecret rejects weak secrets. A public key in place of a secret would let
// everyone sign tokens.
func checkSecret(secret []byte) error {
	switch {
	case len(secret) < MinSecret:
		return fmt.Errorf("%w: an HS256 key has at least %d bytes: openssl rand -hex 32", ErrConfig, MinSecret)
	case bytes.Contains(secret, []byte("-----BEGIN ")):
		return fmt.Errorf("%w: an HS256 key is a secret, not a file in PEM", ErrConfig)
	}
	return nil
}

// maxPlayer bounds a name in bytes.
const maxPlayer = 256

// The error of identify is that of the last rule.
func (i *issuer) identify(claims jwt.MapClaims) (id Identity, err error) {
	for _, rule := range i.rules {
		if id, err = rule.identify(claims); err == nil {
			return id, nil
		}
	}
	return Identity{}, err
}

func (i *Issuer) identify(claims jwt.MapClaims) (Identity, error) {
	audience, err := claims.GetAudience()
	if err != nil {
		return Identity{}, fmt.Errorf("%w: aud is not a list of strings", ErrRules)
	}
	ours := func(a string) bool { return slices.Contains(i.Audience, a) }
	if len(i.Audience) > 0 && !slices.ContainsFunc(audience, ours) {
		return Identity{}, fmt.Errorf("%w: the audience does not match", ErrRules)
	}
	var id Identity
	if id.Tenant.Project, err = i.project(claims, audience); err != nil {
		return Identity{}, err
	}
	if i.EnvironmentAudience != "" {
		id.Tenant.Environment, err = fromAudience("environment", audience, i.EnvironmentAudience, i.Environment)
	} else {
		id.Tenant.Environment, err = nameFromClaim(claims, i.EnvironmentClaim, i.Environment)
	}
	if err != nil {
		return Identity{}, err
	}
	if err := id.Tenant.Validate(); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrRules, err)
	}
	if id.Player, err = claimText(claims, "sub"); err != nil {
		return Identity{}, err
	}
	if id.Regions, err = regionsOf(claims); err != nil {
		return Identity{}, err
	}
	id.Server, err = i.server(claims)
	return id, err
}

// regionsOf returns the names in the claim regions. A claim without a name is an error: its issuer allows no region,
// and not all.
func regionsOf(claims jwt.MapClaims) (all []string, err error) {
	claim, ok := claims[claimRegions]
	if !ok {
		return nil, nil
	}
	list, _ := claim.([]any)
	for _, v := range list {
		name, _ := v.(string)
		if !isValidName(name) {
			list = nil
			break
		}
		all = append(all, name)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: claim %s is not a list of one region or more", ErrRules, claimRegions)
	}
	return all, nil
}

func (i *Issuer) project(claims jwt.MapClaims, audience []string) (string, error) {
	if i.ProjectAudience == "" {
		return nameFromClaim(claims, i.ProjectClaim, i.Project)
	}
	wanted := i.Project
	if _, ok := claims[i.ProjectClaim]; ok {
		var err error
		if wanted, err = nameFromClaim(claims, i.ProjectClaim, wanted); err != nil || !hasPrefixed(audience, i.ProjectAudience) {
			return wanted, err
		}
	}
	return fromAudience("project", audience, i.ProjectAudience, wanted)
}

func hasPrefixed(audience []string, prefix string) bool {
	return slices.ContainsFunc(audience, func(a string) bool { return strings.HasPrefix(a, prefix) })
}

// fromAudience returns the name in the only value of aud with that prefix.
func fromAudience(what string, audience []string, prefix, wanted string) (found string, err error) {
	for _, a := range audience {
		name, ok := strings.CutPrefix(a, prefix)
		switch {
		case !ok:
			continue
		case found != "":
			return "", fmt.Errorf("%w: the audience has two values %s…", ErrRules, prefix)
		}
		found = name
	}
	return checkName("the "+what+" in the audience ("+prefix+"…)", found, wanted)
}

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

// nameFromClaim returns the name in a claim. If wanted is not empty the name must equal
// it; without a claim it is the name.
func nameFromClaim(claims jwt.MapClaims, claim, wanted string) (string, error) {
	if claim == "" {
		return wanted, nil
	}
	name, err := claimText(claims, claim)
	if err != nil {
		return "", err
	}
	return checkName("claim "+claim, name, wanted)
}

func checkName(what, name, wanted string) (string, error) {
	if !isValidName(name) {
		return "", fmt.Errorf("%w: %s is missing or not a name", ErrRules, what)
	}
	if wanted != "" && name != wanted {
		return "", fmt.Errorf("%w: %s does not match", ErrRules, what)
	}
	return name, nil
}

// claimText returns the name in a claim. A number is none: above 2^53, the ids of two people
// would become one (RFC 8259, 6).
func claimText(claims jwt.MapClaims, claim string) (string, error) {
	name, ok := claims[claim].(string)
	if _, isNumber := claims[claim].(float64); isNumber && !ok {
		return "", fmt.Errorf("%w: claim %s is a number, and must be a string: large numbers lose digits", ErrRules, claim)
	}
	return checkName("claim "+claim, name, "")
}

func isValidName(name string) bool {
	return name != "" && len(name) <= maxPlayer && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

type MintRequest struct {
	Secret   []byte
	Identity Identity
	Valid    time.Duration
	// Issuer and Audience are the iss and aud claims. Empty: those of [Development].
	Issuer, Audience string
	// Now is the time of issue.
	Now time.Time
}

// Mint returns a token that [Development] accepts, or an error that wraps ErrConfig.
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
	case !isValidName(t.Project) || !isValidName(t.Environment) || !isValidName(m.Identity.Player):
		return "", fmt.Errorf("%w: project, environment and player are required", ErrConfig)
	case len(t.Project) > alloc.MaxTenantName || len(t.Environment) > alloc.MaxTenantName:
		return "", fmt.Errorf("%w: project and environment have at most %d bytes", ErrConfig, alloc.MaxTenantName)
	case m.Valid <= 0:
		return "", fmt.Errorf("%w: a token that is valid for %v", ErrConfig, m.Valid)
	}
	claims := jwt.MapClaims{
		"iss":            cmp.Or(m.Issuer, DevelopmentIssuer),
		"aud":            cmp.Or(m.Audience, DevelopmentAudience),
		"sub":            m.Identity.Player,
		"iat":            m.Now.Unix(),
		"exp":            m.Now.Add(m.Valid).Unix(),
		claimProject:     t.Project,
		claimEnvironment: t.Environment,
		claimKind:        kind,
	}
	if len(m.Identity.Regions) > 0 {
		claims[claimRegions] = m.Identity.Regions
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(m.Secret)
}
