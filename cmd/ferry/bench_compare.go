package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
)

func (s streams) benchCompare() *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "set runs in proportion to the first one",
		ArgsUsage: "A.json B.json [C.json ...]",
		Description: `Reads files that ferry bench --json wrote and prints B/A, C/A and so on for every
figure. A file with several runs, as of --find-max, stands for its first, the
best one. Runs of different machines, shapes or payloads are refused: exit code 1.

With --rounds, all runs of all files alternate between two sides, A B A B ...,
and what is printed is the median over the pairs, with minimum and maximum.

Examples:
   ferry bench compare null.json ferry.json
   ferry bench compare --html report.html null.json ferry.json direct.json
   ferry bench compare --rounds a1.json b1.json a2.json b2.json`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "rounds", Usage: "the runs are interleaved rounds of two sides"},
			&cli.StringFlag{Name: "html", Usage: "write a report on all the runs to `FILE`"},
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
				err = s.compareRounds(runs)
			} else {
				err = s.compareWithFirst(runs)
			}
			if name := cmd.String("html"); name != "" {
				err = errors.Join(err, report.WriteHTMLFile(name, runs))
			}
			return err
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

func (s streams) compareWithFirst(runs []bench.Result) (all error) {
	for i, r := range runs[1:] {
		if i > 0 {
			fmt.Fprintln(s.stdout)
		}
		c, err := report.Compare(runs[0], r)
		if err == nil {
			err = c.Text(s.stdout)
		}
		all = errors.Join(all, err)
	}
	return all
}

func (s streams) compareRounds(runs []bench.Result) error {
	r, err := report.CompareRounds(runs)
	if err != nil {
		return err
	}
	return r.Text(s.stdout)
}
