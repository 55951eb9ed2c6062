package config

import (
	"errors"
	"fmt"
)

// Issuer is somebody whose JSON Web Tokens the API takes, and for what. It is
// written in the file only. What is empty comes from the preset, if there is one.
type Issuer struct {
	// Preset is "unity", for the tokens of Unity Authentication of one project,
	// or "development", for those of ferry token.
	Preset string `key:"preset" oneof:"unity,development"`
	// Issuer is the iss of the tokens, Audience what aud has to hold, one of them.
	Issuer   string   `key:"issuer"`
	Audience []string `key:"audience"`
	// JWKSURL is where its public keys are. Instead, HS256Key is a secret, in the
	// file or in the one that HS256KeyFile names; after [Load] it is here in both
	// cases.
	JWKSURL      string `key:"jwks_url"`
	HS256Key     Secret `key:"hs256_key"`
	HS256KeyFile string `key:"hs256_key_file"`
	// ProjectClaim and EnvironmentClaim name the claims with both, Project and
	// Environment are both themselves; with claim and name, they have to agree.
	ProjectClaim     string `key:"project_claim"`
	Project          string `key:"project"`
	EnvironmentClaim string `key:"environment_claim"`
	// EnvironmentAudience is the prefix of the aud that names the environment.
	EnvironmentAudience string `key:"environment_audience"`
	Environment         string `key:"environment"`
	// PlayerClaim names the claim with the player; empty: sub.
	PlayerClaim string `key:"player_claim"`
	// KindClaim names the claim that says "player" or "server"; Kind is that of
	// tokens without it.
	KindClaim string `key:"kind_claim"`
	Kind      string `key:"kind" oneof:"player,server"`
}

// resolve fills in what the file of a key leaves to be found.
func (i *Issuer) resolve() (err error) {
	if i.HS256KeyFile == "" {
		return nil
	}
	if i.HS256Key != "" {
		return errors.New("takes either hs256_key or hs256_key_file")
	}
	if i.HS256Key, err = ReadSecret(i.HS256KeyFile); err != nil {
		return fmt.Errorf("hs256_key_file: %w", err)
	}
	return nil
}

// Quota is what one project may use at once, in all its environments together;
// 0 means no limit. It is written in the file only.
type Quota struct {
	Project string `key:"project"`
	// Allocations are those of hosts and players, Players the bound ones.
	Allocations int `key:"allocations" min:"0" max:"67108864"`
	Players     int `key:"players" min:"0" max:"67108864"`
	// BytesPerSecond is what the project relays; above it nothing new is let in,
	// and what plays goes on.
	BytesPerSecond int `key:"bytes_per_second" min:"0" max:"1099511627776"`
	// Inactive refuses everything.
	Inactive bool `key:"inactive"`
}

// resolve refuses a quota of nobody.
func (q *Quota) resolve() error {
	if q.Project == "" {
		return errors.New("needs project")
	}
	return nil
}
