package main

import (
	"fmt"
	"net/url"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/urfave/cli/v3"
)

func nodesCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "nodes", Usage: "list this process, or all processes of a fleet",
		Description: "Example:\n   ferry ctl nodes --watch",
		Flags:       watchFlags(),
	}, show(ctl.Nodes)}
}

func drainCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "drain", Usage: "refuse new allocations, and exit when the running ones have ended", ArgsUsage: "[NODE]",
		Description: `NODE is an id of ferry ctl nodes or a unique prefix of it, at least 4 characters. An
API process can drain any relay of its fleet; ferry ctl nodes shows that within 2 s. A
relay can drain itself only. Without NODE, the process at --admin drains.

Examples:
   ferry ctl drain --deadline 30m
   ferry ctl drain 3f2a --threshold 10`,
		Flags: append(answerFlags(),
			&cli.DurationFlag{Name: "deadline", Usage: "exit after this time even if allocations are left, up to 168h; 0: never",
				DefaultText: "drain_timeout, or 1h"},
			&cli.IntFlag{Name: "threshold", Usage: "exit when at most `NUMBER` allocations are left"},
		),
	}, showParsed(func(cmd *cli.Command) (ctl.Request, error) {
		query := url.Values{}
		if cmd.IsSet("deadline") {
			query.Set("deadline", cmd.Duration("deadline").String())
		}
		if cmd.IsSet("threshold") {
			query.Set("threshold", fmt.Sprint(cmd.Int("threshold")))
		}
		return ctl.Drain(cmd.Args().First(), query), nil
	})}
}

func undrainCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "undrain", Usage: "accept new allocations again", ArgsUsage: "[NODE]",
		Description: "NODE: see ferry ctl drain.\n\nExamples:\n   ferry ctl undrain\n   ferry ctl undrain 3f2a",
		Flags:       answerFlags(),
	}, showOf(ctl.Undrain)}
}

func usageCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "usage", Usage: "show player-seconds, datagrams and bytes of each project in all runs, or of players",
		Description: `Counts from the first start with the state directory on; a crash loses at most a minute.
An API process shows the sum of all relays.

With --players it shows what each player sent, since the relay started: a restart begins
at zero, an upgrade does not. PLAYER-SECONDS are from the reservation to the end of each
allocation that was bound. A relay keeps 10,000 players that have no allocation now. The
others, those without a name and those beyond --top are one sum.

Examples:
   ferry ctl usage -o json
   ferry ctl usage -o csv > usage.csv
   ferry ctl usage --node 3f2a
   ferry ctl usage --players --project my-game --top 20
   ferry ctl usage --players --sort allocations`,
		Flags: append(watchFormatFlags("table, json or csv"), nodeFlag(),
			&cli.BoolFlag{Name: "players", Usage: "show players instead of projects"},
			&cli.StringFlag{Name: "project", Usage: "show players of project `NAME`; requires --players"},
			&cli.StringFlag{Name: "environment", Usage: "show players of environment `NAME`; requires --project"},
			&cli.StringFlag{Name: "sort", Usage: "show players in the order of `COUNT`: allocations, bytes, datagrams, live or seconds", Value: "bytes"},
			&cli.IntFlag{Name: "top", Usage: "show the first `NUMBER` players, 1 to 1000", Value: 100},
		),
	}, showParsed(func(cmd *cli.Command) (r ctl.Request, err error) {
		if cmd.Bool("players") {
			top, err := intWithin(cmd, "top", 1, 1000)
			return ctl.PlayerUsage(cmd.String("node"), operator.PlayersQuery{
				Project: cmd.String("project"), Environment: cmd.String("environment"), Sort: cmd.String("sort"), Top: top,
			}), err
		}
		for _, name := range []string{"project", "environment", "sort", "top"} {
			if cmd.IsSet(name) {
				return r, fmt.Errorf("--%s is for --players", name)
			}
		}
		return ctl.Usage(cmd.String("node")), nil
	})}
}
