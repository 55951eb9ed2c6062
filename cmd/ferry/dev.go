package main

import (
	"context"
	"log/slog"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/app"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/state"
)

func (s streams) dev() *cli.Command {
	return s.command(&cli.Command{
		Name:  "dev",
		Usage: "relay and API on loopback: no credentials, no limits, nothing kept",
		Description: `Every rule of the wire holds as in serve. Anybody may call the API, requests and
ERROR replies are not limited, and the relay's identity is made anew at each
start: --state-dir has no effect. An allocation that no client binds is kept for ten
minutes, not for ten seconds, so that there is time to type: see --bind-timeout.

Examples:
   ferry dev
   ferry dev --udp 127.0.0.1:0 --http 127.0.0.1:0 --admin 127.0.0.1:0
   ferry dev --udp 0.0.0.0:7777 --http 0.0.0.0:7777     for phones in your network

   curl -X POST http://127.0.0.1:7777/v1/allocate -d '{"maxConnections":4}'`,
		Flags: config.Flags(config.Dev()),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			loaded, err := s.load(cmd, app.Dev)
			if err != nil {
				return usage(cmd, err)
			}
			log, level := newLogger(s.stderr, loaded.Config)
			warnOfDev(log, loaded.Config)
			identity, err := state.NewIdentity()
			if err != nil {
				return err
			}
			return s.start(ctx, app.Options{
				Config: loaded.Config, Mode: app.Dev, Identity: identity, Logger: log, Level: level,
				Loaded: loaded, Reload: func() (config.Loaded, error) { return s.load(cmd, app.Dev) },
			})
		},
	})
}

// warnOfDev says what dev leaves out.
func warnOfDev(log *slog.Logger, c config.Config) {
	log.Warn("DEV: NO CREDENTIALS: whoever reaches the API gets an allocation")
	log.Warn("DEV: NO LIMITS: requests, failed joins and ERROR replies are not limited")
	log.Warn("DEV: NOTHING IS KEPT: a restart ends every match")
	for _, addr := range append([]config.Addr{c.HTTP}, c.UDP...) {
		if !addr.Addr().IsLoopback() {
			log.Warn("DEV: OTHERS CAN REACH THIS RELAY: this is for networks that you trust", "address", addr.String())
		}
	}
}
