package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/app"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
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

// start runs relay and API until ctx ends or a drain is over, and prints a line
// for each listener and one when all is ready. If a signal is to begin a drain,
// the first one does.
func (s streams) start(ctx context.Context, o app.Options) error {
	b := readBuild()
	var a *app.App
	o.Version, o.Revision, o.GoVersion = b.version, b.revision, b.goVersion
	o.OnReady = func() { fmt.Fprintln(s.stdout, "ready", a.Summary()) }
	a, err := app.New(o)
	if err != nil {
		return err
	}
	if o.Mode == app.Serve && o.Config.DrainTimeout > 0 {
		defer s.signals.onFirst(func() error { return a.DrainFinally(ctx) })()
	}
	defer s.signals.onReload(func() { a.ReloadOnSignal(ctx) })()
	for _, l := range a.Listeners() {
		fmt.Fprintln(s.stdout, "listening", l.Kind, l.Addr)
	}
	return a.Run(ctx)
}
