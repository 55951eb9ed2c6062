package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/VictoriaMetrics/metrics"
	"github.com/urfave/cli/v3"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// The metrics of the process carry their type only if this switch of the
	// library, which is one per process, is on.
	metrics.ExposeMetadata(true)
	received := make(chan os.Signal, 3)
	signal.Notify(received, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup does
		signal.Notify(received, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := streams{os.Environ(), os.Stdout, os.Stderr, new(signals)}
	go s.signals.obey(received, cancel, s.stderr, func() { os.Exit(exitFailed) })
	code := s.run(ctx, os.Args)
	signal.Stop(received)
	cancel()
	os.Exit(code)
}

// run executes one command line and returns the exit code, without signals.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	return streams{environ, stdout, stderr, new(signals)}.run(ctx, args)
}

// run executes one command line and returns the exit code.
func (s streams) run(ctx context.Context, args []string) int {
	err := s.root().Run(ctx, args)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(s.stderr, "ferry: %v\nSee: %s --help\n", err, usage.command)
		return exitUsage
	}
	fmt.Fprintf(s.stderr, "ferry: %v\n", err)
	return exitFailed
}

// streams are what a command has of the world besides its flags.
type streams struct {
	environ        []string
	stdout, stderr io.Writer
	signals        *signals
}

// usageError says that the user asked for something that cannot be.
type usageError struct {
	command string // the full name of the command
	err     error
}

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usage(cmd *cli.Command, err error) error { return usageError{cmd.FullName(), err} }

func (s streams) root() *cli.Command {
	root := &cli.Command{
		Name:  "ferry",
		Usage: "a relay for multiplayer games that speaks the Unity Relay protocol",
		Description: `Try it:
   ferry demo                         a whole match on this machine
   ferry dev                          a relay and its API on loopback
   ferry serve --config ferry.yaml    the same for players everywhere
   ferry relay, ferry api             the same on many machines`,
		Version:  readBuild().version,
		Commands: []*cli.Command{s.demo(), s.dev(), s.serve(), s.relay(), s.api(), s.check(), s.ctl(), s.top(), s.ping(), s.probe(), s.bench(), s.token(), s.version()},
		// Scripts for bash, zsh, fish and PowerShell: ferry completion SHELL.
		EnableShellCompletion: true,
		Writer:                s.stdout,
		ErrWriter:             s.stderr,
		ExitErrHandler:        func(context.Context, *cli.Command, error) {}, // run does it
		OnUsageError:          onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.Args().Present() {
				return usage(cmd, fmt.Errorf("no command is named %q", cmd.Args().First()))
			}
			return cli.ShowRootCommandHelp(cmd)
		},
	}
	return root
}

func onUsageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	return usage(cmd, err)
}

// command completes a subcommand: it takes flags only.
func (s streams) command(c *cli.Command) *cli.Command {
	action := c.Action
	c.HideHelpCommand = true
	c.OnUsageError = onUsageError
	c.Action = func(ctx context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().First()))
		}
		return action(ctx, cmd)
	}
	return c
}
