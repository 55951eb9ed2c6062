package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// envPrefix begins the name of every environment variable.
const envPrefix = "FERRY_"

// envFile names the configuration file, as the flag --config does.
const envFile = envPrefix + "CONFIG"

// environment returns the variables that begin with envPrefix and are not
// empty.
func environment(environ []string) map[string]string {
	vars := make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && value != "" {
			vars[name] = value
		}
	}
	return vars
}

// foreign reports whether a variable is one that Kubernetes makes for a
// service named ferry, which is none of ours.
func foreign(name string) bool {
	return strings.HasPrefix(name, envPrefix+"SERVICE_") ||
		name == envPrefix+"PORT" || strings.HasPrefix(name, envPrefix+"PORT_")
}

// readEnv reads the variables into c.
func readEnv(vars map[string]string, c *Config, sources map[string]string) error {
	var errs []error
	known := map[string]bool{envFile: true}
	for _, s := range flagged() {
		known[s.env()] = true
		text, ok := vars[s.env()]
		if !ok {
			continue
		}
		sources[s.key] = s.env()
		texts := []string{text}
		if s.list() {
			texts = split(text)
		}
		if err := s.set(reflect.ValueOf(c).Elem(), texts); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.env(), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if !known[name] && !foreign(name) {
			errs = append(errs, fmt.Errorf("%s: unknown environment variable", name))
		}
	}
	return errors.Join(errs...)
}
