package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/app"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
)

func (s streams) check() *cli.Command {
	return s.command(&cli.Command{
		Name:  "check",
		Usage: "read the settings as serve does, and print what is in force",
		Description: `Prints every setting with its source, secrets hidden. Exit code 0: serve would
start with these settings. 1: it would not, for the reasons given. Nothing is
opened, and the state directory is not looked at.

Examples:
   ferry check --config ferry.yaml
   FERRY_REGION=eu ferry check -c ferry.yaml --max-connections 20`,
		Flags: config.Flags(config.Serve()),
		Action: func(_ context.Context, cmd *cli.Command) error {
			loaded, err := config.Load(cmd, s.environ, config.Serve())
			if err != nil {
				return err
			}
			err = loaded.Print(s.stdout)
			for _, w := range app.Warnings(loaded.Config, app.Serve) {
				fmt.Fprintln(s.stderr, "warning:", w)
			}
			err = errors.Join(err, app.Check(loaded.Config, app.Serve))
			if err == nil {
				_, err = fmt.Fprintln(s.stdout, "# serve would start with these settings")
			}
			return err
		},
	})
}
