package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/internal/demo"
)

func demoCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "demo",
		Usage: "play a whole match on this machine and count every datagram",
		Description: `Starts a relay on free ports of loopback, lets a host and its players find one
another over the real API, and has them exchange datagrams over real sockets.
The exit code is 0 only if every datagram arrived.

Examples:
   ferry demo
   ferry demo --players 20 --seconds 10
   ferry demo --json`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "players", Usage: "`NUMBER` of players that join the host, 1 to 1000", Value: 3},
			&cli.FloatFlag{Name: "seconds", Usage: "`SECONDS` of exchanging datagrams, at most 3600", Value: 3},
			&cli.BoolFlag{Name: "json", Usage: "write one JSON object"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			err := demo.Run(ctx, s.stdout, demo.Options{
				Players:  cmd.Int("players"),
				Duration: time.Duration(cmd.Float("seconds") * float64(time.Second)),
				JSON:     cmd.Bool("json"),
				Logger:   slog.New(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
			})
			if errors.Is(err, demo.ErrOptions) {
				return usage(cmd, err)
			}
			return err
		},
	})
}
