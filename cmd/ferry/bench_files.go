package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/urfave/cli/v3"
)

var fileFormats = []struct {
	flag, usage string
	write       func(io.Writer, ...bench.Result) error
}{
	{"json", "write the result to `FILE`, for ferry bench merge, compare and gobench; " +
		"- for standard output, with the report on standard error", report.Write},
	{"html", "write a page with plots to `FILE`; - as above", func(w io.Writer, runs ...bench.Result) error { return report.HTML(w, runs) }},
	{"csv", "write the seconds of the run to `FILE`; - as above. Columns: run, second (0 begins the measured interval), " +
		"datagrams offered, sent and delivered in it, and p50_us, p99_us and max_us, the latency of those in microseconds", report.CSV},
	{"openmetrics", "write the seconds of the run to `FILE` in the OpenMetrics text format, with times, " +
		"for promtool tsdb create-blocks-from; - as above. Metrics: ferry_bench_datagrams_total by state, ferry_bench_latency_seconds by quantile", report.OpenMetrics},
}

// files are names of files by the flag of their format.
type files map[string]string

func fileFlags(category string) (list []cli.Flag) {
	for _, f := range fileFormats {
		list = append(list, &cli.StringFlag{Category: category, Name: f.flag, Usage: f.usage})
	}
	return list
}

// newFiles reads the flags, and checks before the run that the files can be written.
func newFiles(cmd *cli.Command) (files, error) {
	all, stdout := files{}, ""
	for _, f := range fileFormats {
		name := cmd.String(f.flag)
		switch {
		case name == "":
			continue
		case name == "-" && stdout != "":
			return nil, fmt.Errorf("--%s and --%s cannot both write to standard output", stdout, f.flag)
		case name == "-":
			stdout = f.flag
		default:
			if err := checkWritable(name); err != nil {
				return nil, err
			}
		}
		all[f.flag] = name
	}
	return all, nil
}

// checkWritable returns an error if a file cannot be written. It leaves none behind.
func checkWritable(name string) error {
	_, before := os.Stat(name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	if err = f.Close(); errors.Is(before, os.ErrNotExist) {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// onStdout reports whether one of them is standard output.
func (l files) onStdout() bool {
	for _, name := range l {
		if name == "-" {
			return true
		}
	}
	return false
}

func (l files) write(stdout io.Writer, runs []bench.Result) (all error) {
	for _, f := range fileFormats {
		switch name := l[f.flag]; name {
		case "":
		case "-":
			all = errors.Join(all, f.write(stdout, runs...))
		default:
			w, err := os.Create(name)
			if err == nil {
				err = errors.Join(f.write(w, runs...), w.Close())
			}
			all = errors.Join(all, err)
		}
	}
	return all
}

// startTime reads --start-at: a time as of RFC 3339, or + and a duration from now.
func startTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if after, ok := strings.CutPrefix(text, "+"); ok {
		if d, err := time.ParseDuration(after); err == nil {
			return now.Add(d), nil
		}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--start-at: %q is neither a time such as 2026-11-26T18:00:00Z nor one from now such as +30s", text)
	}
	return at, nil
}

func readRates(cmd *cli.Command) (rates []float64, err error) {
	if !cmd.IsSet("rates") {
		return nil, nil
	}
	for text := range strings.SplitSeq(cmd.String("rates"), ",") {
		rate, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(rate > 0) {
			return nil, fmt.Errorf("--rates: %q is not a rate above 0 in datagrams per second, such as 20000", text)
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

func benchMergeCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:      "merge",
		Usage:     "merge the results of several generators that loaded one relay together",
		ArgsUsage: "A.json B.json [C.json ...]",
		Description: `Reads files that ferry bench --json wrote, one run each, and reports them as one.
Counts and rates add up. Percentiles are those of all datagrams, with what was lost
as infinitely late. Gaps are the longest of any generator. The merge is valid if all runs
are, and if they began within 100 ms of each other: give all generators the same
--start-at, and synchronise their clocks. Runs whose loads differ in more than matches and
rate are refused: exit code 1.

Examples:
   ferry bench --matches 50 --rate 20000 --start-at 2026-11-26T18:00:00Z --json a.json     on one machine
   ferry bench --matches 50 --rate 20000 --start-at 2026-11-26T18:00:00Z --json b.json     on another
   ferry bench merge a.json b.json --json both.json --html both.html`,
		Flags:           fileFlags(""),
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.Args().Len() < 2 {
				return usage(cmd, errors.New("it takes two files or more"))
			}
			out, err := newFiles(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			var runs []bench.Result
			for _, name := range cmd.Args().Slice() {
				one, err := report.ReadFile(name)
				if err == nil && len(one) > 1 {
					err = fmt.Errorf("%s has %d runs: merge takes files with one", name, len(one))
				}
				if err != nil {
					return err
				}
				runs = append(runs, one...)
			}
			merged, err := bench.Merge(runs...)
			if err != nil {
				return err
			}
			results := s.stdout
			if out.onStdout() {
				s.stdout = s.stderr
			}
			return errors.Join(report.Text(s.stdout, merged), out.write(results, []bench.Result{merged}))
		},
	}
}
