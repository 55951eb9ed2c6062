package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
)

// fileFlag names the configuration file.
const fileFlag = "config"

// Flags returns the flag of every setting, and --config. The defaults are
// shown in the help and have no other effect.
func Flags(defaults Config) []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{
		Name: fileFlag, Aliases: []string{"c"}, Usage: "`FILE` with settings in YAML" + envHint(envFile),
	}}
	v := reflect.ValueOf(defaults)
	for _, s := range flagged() {
		shown := strings.Join(formats(v.Field(s.index)), ",")
		flags = append(flags, s.cliFlag(shown))
	}
	return flags
}

func envHint(name string) string { return " [$" + name + "]" }

// cliFlag returns the flag of one setting. The variable is only named in its
// help: Load reads it, since it has to come between flag and file.
func (s setting) cliFlag(shown string) cli.Flag {
	usage := s.usage + envHint(s.env())
	switch {
	case s.list():
		return &cli.StringSliceFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: shown}
	case s.kind == reflect.TypeFor[time.Duration]():
		return &cli.DurationFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: shown}
	case s.kind.Kind() == reflect.Bool:
		return &cli.BoolFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: shown}
	case s.kind.Kind() == reflect.Int:
		return &cli.IntFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: shown}
	}
	return &cli.StringFlag{Name: s.flag(), Usage: usage, Category: s.group, DefaultText: shown}
}

// readFlags reads the flags that were given into c.
func readFlags(cmd *cli.Command, c *Config, sources map[string]string) error {
	var errs []error
	for _, s := range flagged() {
		if !cmd.IsSet(s.flag()) {
			continue
		}
		sources[s.key] = "--" + s.flag()
		texts := []string{fmt.Sprint(cmd.Value(s.flag()))}
		if s.list() {
			texts = split(strings.Join(cmd.StringSlice(s.flag()), ","))
		}
		if err := s.set(reflect.ValueOf(c).Elem(), texts); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", s.flag(), err))
		}
	}
	return errors.Join(errs...)
}
