package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v3"
)

func (s streams) top() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "watch what a running relay does",
		Description: `Shows allocations, datagrams and bytes per second, what is dropped and why, and the
busiest projects, of the ferry whose admin pages are asked. The first screen is of
the time since its start. On a terminal q quits, and the keys left and right choose the
column that sorts the projects. Without one, and with --times, one screen follows the
other.

Examples:
   ferry top
   ferry top --every 5s --admin http://127.0.0.1:7778
   ferry top -n 1                             one screen`,
		Flags:           append(adminFlags(), everyFlag(), timesFlag()),
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.Args().Present() {
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().First()))
			}
			client, o, err := s.ctlClient(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			defer client.Close()
			o.Stdin = os.Stdin
			return client.Top(ctx, o)
		},
	}
}
