package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/urfave/cli/v3"
)

var fileFormats = []struct {
	flag, usage string
	write       func(io.Writer, ...bench.Result) error
}{
	{"json", "write the result to `FILE`, for ferry bench compare and gobench; " +
		"- for standard output, with the report on standard error", report.Write},
	{"html", "write a page with a plot to `FILE`; - as above", func(w io.Writer, runs ...bench.Result) error { return report.HTML(w, runs) }},
}

// files are names of files by the flag of their format.
type files map[string]string

func fileFlags() (list []cli.Flag) {
	for _, f := range fileFormats {
		list = append(list, &cli.StringFlag{Category: "Report", Name: f.flag, Usage: f.usage})
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
