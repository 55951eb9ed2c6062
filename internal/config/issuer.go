package config

import (
	"errors"
	"fmt"
)

// Issuer describes an issuer of JSON Web Tokens that the API accepts. What is empty
// comes from the preset, if there is one. After [Load] the secret key is in HS256Key,
// also if it came from a file.
type Issuer struct {
	Preset              string   `key:"preset" oneof:"unity,development" usage:"unity: Unity Authentication of one project; development: tokens of ferry token; empty: none"`
	Issuer              string   `key:"issuer" usage:"iss of the tokens"`
	Audience            []string `key:"audience" usage:"values of which aud has to hold one"`
	JWKSURL             string   `key:"jwks_url" usage:"{URL} of the issuer's public keys"`
	HS256Key            Secret   `key:"hs256_key" usage:"secret key, in place of public ones"`
	HS256KeyFile        string   `key:"hs256_key_file" usage:"{FILE} with that secret key"`
	ProjectClaim        string   `key:"project_claim" usage:"claim that names the project; with project as well, both have to agree"`
	Project             string   `key:"project" usage:"project of all tokens of this issuer"`
	EnvironmentClaim    string   `key:"environment_claim" usage:"claim that names the environment; with environment as well, both have to agree"`
	EnvironmentAudience string   `key:"environment_audience" usage:"prefix of the aud that names the environment"`
	Environment         string   `key:"environment" usage:"environment of all tokens of this issuer"`
	PlayerClaim         string   `key:"player_claim" usage:"claim that names the player; empty: sub"`
	KindClaim           string   `key:"kind_claim" usage:"claim that says player or server"`
	Kind                string   `key:"kind" oneof:"player,server" usage:"kind of tokens without that claim"`
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

// Quota is what one project may use at once, in all its environments together; 0
// means no limit.
type Quota struct {
	Project        string `key:"project" usage:"project; required"`
	Allocations    int    `key:"allocations" min:"0" max:"67108864" usage:"allocations of hosts and players; 0: no limit"`
	Players        int    `key:"players" min:"0" max:"67108864" usage:"bound allocations; 0: no limit"`
	BytesPerSecond int    `key:"bytes_per_second" min:"0" max:"1099511627776" usage:"bytes that the project relays per second, above which new allocations are refused and running matches go on; 0: no limit"`
	Inactive       bool   `key:"inactive" usage:"refuse every call of the project"`
}

// resolve refuses a quota without a project.
func (q *Quota) resolve() error {
	if q.Project == "" {
		return errors.New("needs project")
	}
	return nil
}
