package config

import (
	"errors"

	"github.com/urfave/cli/v3"
)

// Loaded is a Config and where each of its values came from.
type Loaded struct {
	Config
	// File is the configuration file, empty if there was none.
	File string

	sources map[string]string // by YAML key; absent: the default
}

// Load puts together the defaults, the file that cmd or the environment names,
// the environment, which has the form of os.Environ, and the flags of cmd,
// which were made by [Flags]. Every problem is in the error, one per line; each
// says where it stands.
func Load(cmd *cli.Command, environ []string, defaults Config) (Loaded, error) {
	l := Loaded{Config: defaults, sources: make(map[string]string)}
	vars := environment(environ)
	l.File = vars[envFile]
	if cmd.IsSet(fileFlag) {
		l.File = cmd.String(fileFlag)
	}
	var errs []error
	if l.File != "" {
		errs = append(errs, readFile(l.File, &l.Config, l.sources))
	}
	errs = append(errs,
		readEnv(vars, &l.Config, l.sources),
		readFlags(cmd, &l.Config, l.sources))
	if err := errors.Join(errs...); err != nil {
		return Loaded{}, err
	}
	return l, l.validate()
}

// byDefault is the source of what nobody has set.
const byDefault = "default"

// Source says where the value of a YAML key came from: "default", FILE:LINE,
// the name of a variable, or a flag.
func (l Loaded) Source(key string) string {
	if s, ok := l.sources[key]; ok {
		return s
	}
	return byDefault
}

// Set reports whether somebody has given the key a value.
func (l Loaded) Set(key string) bool { return l.Source(key) != byDefault }
