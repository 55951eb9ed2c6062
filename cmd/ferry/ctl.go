package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/urfave/cli/v3"
)

func controlCommand(s streams) *cli.Command {
	c := &cli.Command{
		Name:  "ctl",
		Usage: "show and change the state of a running ferry",
		Description: `Calls the admin pages of a running ferry, by default on this machine. The exit code is
0 only on success.

Examples:
   ferry ctl allocations --role host
   ferry ctl players 6a1c3f5e-0d2b-4c7a-9e8f-112233445566
   ferry ctl kick 2f4e6d8c-1b3a-4958-8776-665544332211
   ferry ctl usage -o json
   ferry ctl drain --deadline 30m
   ferry ctl drain 3f2a                       a relay of a fleet, by an API process
   ferry ctl nodes --curl                     prints the same as a curl line
   ferry ctl nodes --admin https://relay.example.org:7778 --token-file admin-token`,
		Action: showCommands("ctl has no command %q"),
	}
	for _, sub := range []ctlCommand{
		nodesCommand(), allocationsCommand(), playersCommand(), whyCommand(), timelineCommand(), captureCommand(), kickCommand(), closeCommand(),
		bansCommand(), banCommand(), unbanCommand(), usageCommand(),
		configCommand(), reloadCommand(), upgradeCommand(), logLevelCommand(), fastPathCommand(), drainCommand(), undrainCommand(),
	} {
		c.Commands = append(c.Commands, sub.complete(s))
	}
	c.Commands = append(c.Commands, clusterCACommand(s))
	return c
}

// ctlCommand is a command about a running ferry, and what it does after its flags are read.
type ctlCommand struct {
	*cli.Command
	do ctlAction
}

type ctlAction func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error

func show(newRequest func() ctl.Request) ctlAction {
	return showParsed(func(*cli.Command) (ctl.Request, error) { return newRequest(), nil })
}

// showOf shows the answer to a request about the argument, "" if it may be left out and is.
func showOf(newRequest func(argument string) ctl.Request) ctlAction {
	return showParsed(func(cmd *cli.Command) (ctl.Request, error) { return newRequest(cmd.Args().First()), nil })
}

// showParsed shows the answer to a request that the flags describe.
func showParsed(parse func(*cli.Command) (ctl.Request, error)) ctlAction {
	return func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		r, err := parse(cmd)
		if err != nil {
			return usage(cmd, err)
		}
		return c.Show(ctx, o, r)
	}
}

// complete adds what all commands have. The arguments are those of ArgsUsage, of which those in brackets
// are optional.
func (c ctlCommand) complete(s streams) *cli.Command {
	c.Flags = append(adminFlags(), c.Flags...)
	names := strings.Fields(c.ArgsUsage)
	c.Action = func(ctx context.Context, cmd *cli.Command) error {
		if n := cmd.Args().Len(); n > len(names) {
			return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(len(names))))
		} else if n < len(names) && !strings.HasPrefix(names[n], "[") {
			return usage(cmd, fmt.Errorf("%s is missing", names[n]))
		}
		client, o, err := connect(s, cmd)
		if err != nil {
			return usage(cmd, err)
		}
		defer client.Close()
		return c.do(ctx, cmd, client, o)
	}
	return c.Command
}

// connect reads the flags that all commands share.
func connect(s streams, cmd *cli.Command) (*ctl.Client, ctl.Output, error) {
	o := ctl.Output{
		Stdout: s.stdout, Stderr: s.stderr, JSON: cmd.String("output") == "json", CSV: cmd.String("output") == "csv", Curl: cmd.Bool("curl"),
		Watch: cmd.Bool("watch"), Every: cmd.Duration("every"), Times: cmd.Int("times"),
	}
	flags := cmd.FlagNames()
	switch format := cmd.String("output"); {
	case format == "csv" && cmd.Name != "usage":
		return nil, o, errors.New("--output: csv is for ferry ctl usage only")
	case format != "" && format != "table" && format != "json" && format != "csv":
		return nil, o, fmt.Errorf("--output: %q is neither table nor json", format)
	case o.Every != 0 && (o.Every < 100*time.Millisecond || o.Every > time.Hour):
		return nil, o, fmt.Errorf("--every: %v is not within 100ms to 1h", o.Every)
	case o.Times < 0:
		return nil, o, fmt.Errorf("--times: %d is negative", o.Times)
	case !o.Watch && (slices.Contains(flags, "every") || slices.Contains(flags, "times")):
		return nil, o, errors.New("--every and --times are for --watch")
	}
	tokenFile := cmd.String("token-file")
	if tokenFile == "" {
		tokenFile = s.getenv("FERRY_ADMIN_TOKEN_FILE")
	}
	client, err := ctl.New(ctl.Config{URL: cmd.String("admin"), TokenFile: tokenFile, CAFile: cmd.String("ca")})
	return client, o, err
}

func adminFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "admin", Usage: "`URL` of the admin pages", Value: ctl.DefaultURL},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token of the admin pages [$FERRY_ADMIN_TOKEN_FILE]"},
		caFlag(""),
	}
}

func answerFlags() []cli.Flag { return formatFlags("table or json") }

func formatFlags(formats string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "output `FORMAT`: " + formats, Value: "table"},
		curlFlag(),
	}
}

func curlFlag() cli.Flag {
	return &cli.BoolFlag{Name: "curl", Usage: "print the equivalent curl command instead of making the call"}
}

func watchFlags() []cli.Flag { return watchFormatFlags("table or json") }

func watchFormatFlags(formats string) []cli.Flag {
	return append(formatFlags(formats),
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "repeat the output"},
		&cli.DurationFlag{Name: "every", Usage: "interval between two updates, 100ms to 1h", Value: 2 * time.Second},
		&cli.IntFlag{Name: "times", Aliases: []string{"n"}, Usage: "stop after `NUMBER` updates; 0: never"},
	)
}

func nodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "node", Usage: "use the relay `NODE` of a fleet, as for ferry ctl drain (API processes only)"}
}

// intWithin returns the value of a flag, which has to be within low and high.
func intWithin(cmd *cli.Command, name string, low, high int) (int, error) {
	n := cmd.Int(name)
	if n < low || n > high {
		return 0, fmt.Errorf("--%s: %d is not within %d to %d", name, n, low, high)
	}
	return n, nil
}
