package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/urfave/cli/v3"
)

func benchCompareCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "compare runs with the first one",
		ArgsUsage: "A.json B.json [C.json ...]",
		Description: `Reads files that ferry bench --json wrote and prints B/A, C/A and so on for every
figure. A file with several runs, as of --find-max, stands for its first, the
best one. Runs of different machines, shapes or payloads are refused: exit code 2.

With --rounds, all runs of all files alternate between two sides, A B A B ...,
and what is printed are medians over the rounds with minimum and maximum, and the
median of the ratios B/A of each round with its 95 % confidence interval. The
interval is from one of the sorted ratios to another, by the sign test: it assumes
no distribution, and needs 6 rounds. Where it holds 1, no difference is shown. Of 20
figures without a difference, one is expected to show one by chance.

Examples:
   ferry bench compare null.json ferry.json
   ferry bench compare --html report.html null.json ferry.json direct.json
   ferry bench compare --rounds a1.json b1.json a2.json b2.json`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "rounds", Usage: "the runs are interleaved rounds of two sides"},
			&cli.StringFlag{Name: "html", Usage: "write a report on all runs to `FILE`"},
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.Args().Len() < 2 && !(cmd.Bool("rounds") && cmd.Args().Present()) {
				return usage(cmd, errors.New("it takes two files or more"))
			}
			runs, err := readRuns(cmd.Args().Slice(), cmd.Bool("rounds"))
			if err != nil {
				return err
			}
			if cmd.Bool("rounds") {
				err = report.CompareRounds(s.stdout, runs)
			} else {
				err = report.Compare(s.stdout, runs)
			}
			return errors.Join(err, files{"html": cmd.String("html")}.write(s.stdout, runs))
		},
	}
}

// readRuns reads the first run of each file, or all of them.
func readRuns(names []string, all bool) (runs []bench.Result, err error) {
	for _, name := range names {
		some, err := report.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if !all {
			some = some[:1]
		}
		runs = append(runs, some...)
	}
	return runs, nil
}

func benchGoBenchCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:      "gobench",
		Usage:     "write runs in the format of go test -bench, for benchstat",
		ArgsUsage: "A.json [B.json ...]",
		Description: `Reads files that ferry bench --json wrote and prints a line for each, in the
format that golang.org/x/perf/cmd/benchstat reads: processor time of the server
per datagram, latency, rate and loss. Of a file with several runs, as of
--find-max, it takes the first, the best one. The name of a run (--name) is in
the line as relay=NAME. A run that is invalid, interrupted or empty is left out,
with a line on standard error that says why; --all writes it too.

Examples:
   for i in 1 2 3 4 5 6; do
     ferry bench --name old --relay 127.0.0.1:7777 --api http://127.0.0.1:7777 --json old$i.json
     ferry bench --name new --relay 127.0.0.1:7877 --api http://127.0.0.1:7877 --json new$i.json
   done
   ferry bench gobench old?.json new?.json > runs.txt
   benchstat -col /relay runs.txt`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "write invalid, interrupted and empty runs too"},
		},
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
			if !cmd.Bool("all") {
				runs = slices.DeleteFunc(runs, func(r bench.Result) bool {
					why := report.Unsound(r)
					if why != "" {
						fmt.Fprintf(s.stderr, "left out %s of %s: %s\n", printable.Text(r.Name), r.Started.Format(time.RFC3339), why)
					}
					return why != ""
				})
			}
			return report.GoBench(s.stdout, runs...)
		},
	}
}

func benchNullCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "null",
		Usage: "run a relay without lookups, for comparison",
		Description: `Relays by arithmetic on the source address, with the sockets of the real relay
and nothing else: the least that a relay on them can cost. It forwards for
every client that reaches it, so keep it on loopback. It runs until it is interrupted.

Examples:
   ferry bench null --udp 127.0.0.1:7790
   ferry bench null --udp 127.0.0.1:7790 --star     for ferry bench --shape star
   ferry bench --dialect swap --target 127.0.0.1:7790 --rate 5000 --duration 3s`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "udp", Value: "127.0.0.1:7790", Usage: "`ADDRESS:PORT` to listen on, IPv4"},
			&cli.BoolFlag{Name: "star", Usage: "forward as in stars, from players to their host"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			addr, err := addrFlag(cmd, "udp")
			if err != nil {
				return usage(cmd, err)
			}
			ensureTwoProcessors()
			relay, err := benchrig.NewNullRelay(benchrig.NullConfig{Addr: addr, Star: cmd.Bool("star")})
			if err != nil {
				return err
			}
			fmt.Fprintln(s.stdout, "listening udp", relay.Addr())
			fmt.Fprintf(s.stdout, "ready udp=%v\n", relay.Addr())
			return relay.Run(ctx)
		},
	})
}
