package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/app"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/state"
	"github.com/ferryrelay/ferry/internal/store/redis"
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

// options reads the settings of a command that is for the public, and warns of
// those that it has no use for.
func (s streams) options(cmd *cli.Command, mode app.Mode) (app.Options, error) {
	loaded, err := s.load(cmd, mode)
	if err != nil {
		return app.Options{}, usage(cmd, err)
	}
	log, level := newLogger(s.stderr, loaded.Config)
	for _, why := range app.Unused(loaded, mode) {
		log.Warn(why)
	}
	return app.Options{
		Config: loaded.Config, Mode: mode, Logger: log, Level: level,
		Loaded: loaded, Reload: func() (config.Loaded, error) { return s.load(cmd, mode) },
	}, nil
}

// withState runs a relay that is for the public, with what it knows of the run
// before.
func (s streams) withState(mode app.Mode) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) (err error) {
		o, err := s.options(cmd, mode)
		if err != nil {
			return err
		}
		if mode == app.Relay {
			redisstore.SetLogger(o.Logger)
		}
		dir, err := state.Open(o.Config.StateDir, o.Logger)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.Close()) }()
		o.Identity, o.Fresh = dir.Identity, dir.Created
		o.StateFile, o.SessionFile = dir.Allocations(), dir.Sessions()
		return s.start(ctx, o)
	}
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
	if (o.Mode == app.Serve || o.Mode == app.Relay) && o.Config.DrainTimeout > 0 {
		defer s.signals.onFirst(func() error { return a.DrainFinally(ctx) })()
	}
	defer s.signals.onReload(func() { a.ReloadOnSignal(ctx) })()
	for _, l := range a.Listeners() {
		fmt.Fprintln(s.stdout, "listening", l.Kind, l.Addr)
	}
	return a.Run(ctx)
}
