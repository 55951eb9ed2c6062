package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/process"
)

var errProblems = errors.New("there are problems")

func doctorCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "doctor",
		Usage: "examine this machine and the settings, and say what to do",
		Description: `Examines what a relay or API process needs: settings, clock, processors, network cards,
buffers and limits of the kernel, open files, ports, advertised addresses and address
translation, certificates, names, and the store of a fleet. Each line is ok, advice
(it works and could be better), a problem, or was skipped, with what to do about it.
It opens sockets for a moment and changes nothing. The exit code is 1 if there is a
problem. While ferry runs, its ports may be in use. The role is that of the settings, as for
ferry check.

Examples:
   ferry doctor --config ferry.yaml
   ferry doctor --role relay -c ferry.yaml --json`,
		Flags: append(config.Flags(config.Serve()),
			roleFlag("examine"),
			&cli.BoolFlag{Name: "json", Usage: "write a JSON array"}),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			loaded, mode, because, err := loadForRole(cmd, s.environ)
			if loaded.IsZero() {
				return usage(cmd, err)
			}
			doctor := process.Doctor{Config: loaded.Config, Mode: mode, ModeBecause: because, Unloaded: err}
			all := doctor.Examine(ctx)
			if cmd.Bool("json") {
				e := json.NewEncoder(s.stdout)
				e.SetIndent("", "  ")
				err = e.Encode(all)
			} else {
				err = s.printDiagnoses(all)
			}
			for _, d := range all {
				if d.State == "problem" && err == nil {
					err = errProblems
				}
			}
			return err
		},
	})
}

// printDiagnoses writes a line for each, and a second one with what to do.
func (s streams) printDiagnoses(all []process.Diagnosis) error {
	var b strings.Builder
	for _, d := range all {
		fmt.Fprintf(&b, "%-8s %s: %s\n", d.State, d.Subject, strings.ReplaceAll(d.Text, "\n", "\n         "))
		if d.Do != "" {
			fmt.Fprintf(&b, "         -> %s\n", d.Do)
		}
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
