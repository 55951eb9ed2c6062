package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/bench/report"
)

func (s streams) benchGoBench() *cli.Command {
	return &cli.Command{
		Name:      "gobench",
		Usage:     "write runs as go test -bench does, for benchstat",
		ArgsUsage: "A.json [B.json ...]",
		Description: `Reads files that ferry bench --json wrote and prints a line for each, in the
format that golang.org/x/perf/cmd/benchstat reads: processor time of the server
per datagram, latency, rate and loss. Of a file with several runs, as of
--find-max, it takes the first, the best one. The name of a run (--name) is in
the line as relay=NAME.

Examples:
   for i in 1 2 3 4 5 6; do
     ferry bench --name old --relay 127.0.0.1:7777 --api http://127.0.0.1:7777 --json old$i.json
     ferry bench --name new --relay 127.0.0.1:7877 --api http://127.0.0.1:7877 --json new$i.json
   done
   ferry bench gobench old?.json new?.json > runs.txt
   benchstat -col /relay runs.txt`,
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if !cmd.Args().Present() {
				return usage(cmd, errors.New("it takes one file or more"))
			}
			runs, err := readRuns(cmd.Args().Slice(), false)
			if err != nil {
				return err
			}
			return report.GoBench(s.stdout, runs...)
		},
	}
}
