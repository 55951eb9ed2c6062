package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/app"
	"github.com/ferryrelay/ferry/internal/config"
)

func (s streams) check() *cli.Command {
	return s.command(&cli.Command{
		Name:  "check",
		Usage: "read the settings as serve, relay or api does, and print what is in force",
		Description: `Prints every setting with its source, secrets hidden. Exit code 0: it would start
with these settings. 1: it would not, for the reasons given. Nothing is opened, and
the state directory is not looked at. What the role has no use for is named.

Examples:
   ferry check --config ferry.yaml
   ferry check --role api -c ferry.yaml
   FERRY_REGION=eu ferry check -c ferry.yaml --max-connections 20`,
		Flags: append(config.Flags(config.Serve()),
			&cli.StringFlag{Name: "role", Usage: "`ROLE` whose settings they are: serve, relay or api", Value: app.Serve.String()}),
		Action: func(_ context.Context, cmd *cli.Command) error {
			mode, err := roleOf(cmd.String("role"))
			if err != nil {
				return usage(cmd, err)
			}
			loaded, err := config.Load(cmd, s.environ, config.Serve())
			if err != nil {
				return err
			}
			err = loaded.Print(s.stdout)
			for _, w := range append(app.Warnings(loaded.Config, mode), app.Unused(loaded, mode)...) {
				fmt.Fprintln(s.stderr, "warning:", w)
			}
			err = errors.Join(err, app.Check(loaded.Config, mode))
			if err == nil {
				_, err = fmt.Fprintf(s.stdout, "# %s would start with these settings\n", mode)
			}
			return err
		},
	})
}

// roleOf returns the mode of a command that is for the public.
func roleOf(name string) (app.Mode, error) {
	for _, mode := range []app.Mode{app.Serve, app.Relay, app.API} {
		if mode.String() == name {
			return mode, nil
		}
	}
	return 0, fmt.Errorf("--role: %q is not serve, relay or api", name)
}
