package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/app"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/state"
)

// load reads the settings of a command and checks them for mode, before
// anything is opened.
func (s streams) load(cmd *cli.Command, mode app.Mode) (config.Loaded, error) {
	defaults := config.Serve()
	if mode == app.Dev {
		defaults = config.Dev()
	}
	loaded, err := config.Load(cmd, s.environ, defaults)
	if err == nil {
		err = app.Check(loaded.Config, mode)
	}
	return loaded, err
}

// start runs relay and API until ctx ends, and prints a line for each listener
// and one when all is ready.
func (s streams) start(ctx context.Context, c config.Config, mode app.Mode, identity state.Identity, log *slog.Logger) error {
	b := readBuild()
	var a *app.App
	a, err := app.New(app.Options{
		Config: c, Mode: mode, Identity: identity, Logger: log,
		Version: b.version, Revision: b.revision, GoVersion: b.goVersion,
		OnReady: func() { fmt.Fprintln(s.stdout, "ready", a.Summary()) },
	})
	if err != nil {
		return err
	}
	for _, l := range a.Listeners() {
		fmt.Fprintln(s.stdout, "listening", l.Kind, l.Addr)
	}
	return a.Run(ctx)
}
