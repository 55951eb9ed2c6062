package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ferryrelay/ferry/internal/base/joincode"
)

// Token is a bearer token of the API and its tenant. [Load] reads SecretFile into
// Secret.
type Token struct {
	Secret      Secret `key:"secret" usage:"the token, 16 characters or more"`
	SecretFile  string `key:"secret_file" usage:"{FILE} with the token, instead of secret"`
	Project     string `key:"project" usage:"project of the caller; required"`
	Environment string `key:"environment" usage:"environment of the caller"`
	Player      string `key:"player" usage:"{ID} of the player; empty: derived from the token"`
	Kind        string `key:"kind" oneof:"player,server" usage:"kind of the caller: player (default), or server for a backend"`
	// Regions is a list, as it is in the file.
	Regions []string `key:"regions" usage:"ids of the regions in which the caller may have hosts, the preferred one first, of those of its project; empty: all of these"`
}

// Issuer describes an issuer of JSON Web Tokens that the API accepts. The preset,
// if there is one, supplies the empty fields. [Load] reads HS256KeyFile into
// HS256Key.
type Issuer struct {
	Preset           string   `key:"preset" oneof:"unity,development" usage:"unity: Unity Authentication of one project; development: tokens of ferry token; empty: no preset"`
	Issuer           string   `key:"issuer" usage:"iss claim of the tokens"`
	Audience         []string `key:"audience" usage:"accepted values of the aud claim; a token must have at least one"`
	JWKSURL          string   `key:"jwks_url" usage:"{URL} of the issuer's public keys"`
	HS256Key         Secret
	HS256KeyFile     string `key:"hs256_key_file" usage:"{FILE} with a secret key, instead of public keys"`
	ProjectClaim     string `key:"project_claim" usage:"claim with the project; if project is set too, both must agree"`
	Project          string `key:"project" usage:"project of all tokens of this issuer"`
	EnvironmentClaim string `key:"environment_claim" usage:"claim with the environment; if environment is set too, both must agree"`
	Environment      string `key:"environment" usage:"environment of all tokens of this issuer"`
	Kind             string `key:"kind" oneof:"player,server" usage:"kind of all tokens of this issuer: player (default), or server for backends; of the preset development, of those that do not say it"`
}

func (i *Issuer) resolve() (err error) {
	if i.HS256KeyFile == "" {
		return nil
	}
	if i.HS256Key, err = ReadSecret(i.HS256KeyFile); err != nil {
		return fmt.Errorf("hs256_key_file: %w", err)
	}
	return nil
}

// Quota limits the concurrent use of one project, summed over its environments.
// 0 means no limit.
type Quota struct {
	Project        string `key:"project" usage:"project; required"`
	Allocations    int    `key:"allocations" min:"0" max:"67108864" usage:"maximum number of allocations, of hosts and players; 0: no limit"`
	Players        int    `key:"players" min:"0" max:"67108864" usage:"maximum number of bound allocations; 0: no limit"`
	BytesPerSecond int    `key:"bytes_per_second" min:"0" max:"1099511627776" usage:"rate in bytes per second above which new allocations are refused; running matches continue; 0: no limit"`
	Inactive       bool   `key:"inactive" usage:"refuse every API call of the project"`
	// Regions is a list, as it is in the file.
	Regions []string `key:"regions" usage:"ids of the regions in which the project may have hosts, the preferred one first; empty: all"`
}

func (q *Quota) resolve() error {
	if q.Project == "" {
		return errors.New("needs project")
	}
	return nil
}

// RegionStore is the store of one region of a fleet in which each region has its own.
type RegionStore struct {
	Region       string `key:"region" usage:"{ID} of the region; required"`
	CodeSymbol   string `key:"code_symbol" usage:"first {SYMBOL} of the join codes of the region, one of 6789BCDFGHJKLMNPQRTW that no other region has; required"`
	Store        Secret `key:"store" usage:"{URL} of the store of the region, as in the setting store; required"`
	PasswordFile string `key:"password_file" usage:"{FILE} with the password of the store, if its URL has none; empty: store_password_file"`
}

func (s *RegionStore) resolve() error {
	if s.Region == "" || s.Store == "" {
		return errors.New("needs region, code_symbol and store")
	}
	if len(s.CodeSymbol) != 1 || !strings.Contains(joincode.Alphabet, s.CodeSymbol) {
		return fmt.Errorf("code_symbol %q is not one of %s", s.CodeSymbol, joincode.Alphabet)
	}
	return nil
}
