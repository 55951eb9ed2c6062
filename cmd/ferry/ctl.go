package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/ctl"
)

func (s streams) ctl() *cli.Command {
	c := &cli.Command{
		Name:  "ctl",
		Usage: "see and change what a running ferry does",
		Description: `Asks the admin pages of a running ferry, by default those of this machine. The
exit code is 0 only if it did what was asked for.

Examples:
   ferry ctl allocations --role host
   ferry ctl players 6a1c3f5e-0d2b-4c7a-9e8f-112233445566
   ferry ctl kick 2f4e6d8c-1b3a-4958-8776-665544332211
   ferry ctl usage -o json
   ferry ctl drain --deadline 30m
   ferry ctl drain 3f2a                       a relay of a fleet, asked of an API process
   ferry ctl nodes --curl                     prints the same as a curl line
   ferry ctl nodes --admin https://relay.example.org:7778 --token-file admin-token`,
		Commands: []*cli.Command{
			s.ctlNodes(), s.ctlAllocations(), s.ctlPlayers(), s.ctlKick(), s.ctlClose(), s.ctlUsage(),
			s.ctlConfig(), s.ctlReload(), s.ctlLogLevel(), s.ctlDrain(), s.ctlUndrain(), s.ctlClusterCA(),
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
	}
	c.Action = func(_ context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return usage(cmd, fmt.Errorf("ctl has no command %q", cmd.Args().First()))
		}
		return cli.ShowSubcommandHelp(cmd)
	}
	return c
}

// adminFlags say which pages are asked.
func adminFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "admin", Usage: "`URL` of the admin pages", Value: ctl.DefaultURL},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token that they ask for [$FERRY_ADMIN_TOKEN_FILE]"},
		&cli.StringFlag{Name: "ca", Usage: "`FILE` with certificates of authorities to trust besides the system's"},
	}
}

// answerFlags say how an answer is shown.
func answerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: table or json", Value: "table"},
		&cli.BoolFlag{Name: "curl", Usage: "print the curl line that asks the same, and ask nothing"},
	}
}

// watchFlags let an answer be shown again and again.
func watchFlags() []cli.Flag {
	return append(answerFlags(),
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again and again"},
		everyFlag(), timesFlag(),
	)
}

func everyFlag() cli.Flag {
	return &cli.DurationFlag{Name: "every", Usage: "time between two looks, 100ms to 1h", Value: 2 * time.Second}
}

func timesFlag() cli.Flag {
	return &cli.IntFlag{Name: "times", Aliases: []string{"n"}, Usage: "stop after `NUMBER` looks; 0: never"}
}

// ask is what a command does once its flags have been read.
type ask func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error

// ctlCommand completes a command that takes the arguments that its ArgsUsage
// names, of which those in brackets may be left out.
func (s streams) ctlCommand(c *cli.Command, do ask) *cli.Command {
	c.Flags = append(adminFlags(), c.Flags...)
	c.HideHelpCommand = true
	c.OnUsageError = onUsageError
	names := strings.Fields(c.ArgsUsage)
	c.Action = func(ctx context.Context, cmd *cli.Command) error {
		if n := cmd.Args().Len(); n > len(names) {
			return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(len(names))))
		} else if n < len(names) && !strings.HasPrefix(names[n], "[") {
			return usage(cmd, fmt.Errorf("%s is missing", names[n]))
		}
		client, o, err := s.ctlClient(cmd)
		if err != nil {
			return usage(cmd, err)
		}
		defer client.Close()
		return do(ctx, cmd, client, o)
	}
	return c
}

// ctlClient reads the flags that all commands share.
func (s streams) ctlClient(cmd *cli.Command) (*ctl.Client, ctl.Output, error) {
	o := ctl.Output{
		Stdout: s.stdout, Stderr: s.stderr, JSON: cmd.String("output") == "json", Curl: cmd.Bool("curl"),
		Watch: cmd.Bool("watch"), Every: cmd.Duration("every"), Times: cmd.Int("times"),
	}
	flags := cmd.FlagNames()
	switch format := cmd.String("output"); {
	case format != "" && format != "table" && format != "json":
		return nil, o, fmt.Errorf("--output: %q is neither table nor json", format)
	case o.Every != 0 && (o.Every < 100*time.Millisecond || o.Every > time.Hour):
		return nil, o, fmt.Errorf("--every: %v is not within 100ms to 1h", o.Every)
	case o.Times < 0:
		return nil, o, fmt.Errorf("--times: %d is negative", o.Times)
	case cmd.Name != "top" && !o.Watch && (slices.Contains(flags, "every") || slices.Contains(flags, "times")):
		return nil, o, errors.New("--every and --times are for --watch")
	}
	tokenFile := cmd.String("token-file")
	if tokenFile == "" {
		tokenFile = s.getenv("FERRY_ADMIN_TOKEN_FILE")
	}
	client, err := ctl.New(ctl.Config{URL: cmd.String("admin"), TokenFile: tokenFile, CAFile: cmd.String("ca")})
	return client, o, err
}

func (s streams) getenv(name string) string {
	for _, entry := range s.environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func (s streams) ctlNodes() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "nodes", Usage: "the process, or all of a fleet",
		Description: "Example:\n   ferry ctl nodes --watch",
		Flags:       watchFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error { return c.Nodes(ctx, o) })
}

func nodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "node", Usage: "`NODE` of a fleet, as for ferry ctl drain, whose relay is meant; asked of an API process"}
}

func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Usage: "show `NUMBER` at most; 0: all", Value: 100}
}

func checkLimit(cmd *cli.Command) error {
	if n := cmd.Int("limit"); n < 0 {
		return usage(cmd, fmt.Errorf("--limit: %d is negative", n))
	}
	return nil
}

func (s streams) ctlAllocations() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "allocations", Usage: "who is there: hosts, players, reservations",
		Description: `AGE counts from the reservation, or from the return after a restart, HEARD from the
last datagram of the player. The address of a player by DTLS or WebSocket is not
known to the relay. TOO-LARGE counts messages to the player that were dropped, since
its way in does not carry them (websocket_max_message, dtls_max_message).

Examples:
   ferry ctl allocations --role host --limit 0
   ferry ctl allocations --match 6a1c3f5e-0d2b-4c7a-9e8f-112233445566
   ferry ctl allocations --project my-game --environment production --bound false -o json
   ferry ctl allocations --node 3f2a          a relay of a fleet, asked of an API process`,
		Flags: append(watchFlags(),
			&cli.StringFlag{Name: "project", Usage: "`NAME` of a project, with --environment"},
			&cli.StringFlag{Name: "environment", Usage: "`NAME` of its environment"},
			&cli.StringFlag{Name: "tenant", Usage: "`DIGEST` of both, as shown where the names are not known"},
			&cli.StringFlag{Name: "role", Usage: "`ROLE`: host or joiner"},
			&cli.StringFlag{Name: "match", Usage: "`ID` of a host: it and its players"},
			&cli.StringFlag{Name: "bound", Usage: "true: those that are reached somewhere; false: the others"},
			&cli.StringFlag{Name: "transport", Usage: "`WAY`: udp4, udp6, dtls or ws"},
			limitFlag(), nodeFlag(),
		),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		if err := checkLimit(cmd); err != nil {
			return err
		}
		return c.Allocations(ctx, o, ctl.Filter{
			Project: cmd.String("project"), Environment: cmd.String("environment"), Tenant: cmd.String("tenant"),
			Role: cmd.String("role"), Match: cmd.String("match"), Bound: cmd.String("bound"),
			Transport: cmd.String("transport"), Limit: cmd.Int("limit"), Node: cmd.String("node"),
		})
	})
}

func (s streams) ctlPlayers() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "players", Usage: "the players of a host", ArgsUsage: "HOST",
		Description: "Example:\n   ferry ctl players 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --watch",
		Flags:       append(watchFlags(), limitFlag(), nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		if err := checkLimit(cmd); err != nil {
			return err
		}
		return c.Players(ctx, o, cmd.String("node"), cmd.Args().First(), cmd.Int("limit"))
	})
}

func (s streams) ctlKick() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "kick", Usage: "remove a player from its match", ArgsUsage: "PLAYER",
		Description: `Both sides are told that the other has left, and the allocation of the player
ends. With the join code it can come again: who must not is for the game to know.
An API process of a fleet finds the relay that has it.

Example:
   ferry ctl kick 2f4e6d8c-1b3a-4958-8776-665544332211`,
		Flags: answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Kick(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlClose() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "close", Usage: "end an allocation: with a host ends its match", ArgsUsage: "ID",
		Description: `Ends an allocation as if its owner had closed it: its join code is gone at once, and
who was linked to it learns so with the next message. An API process of a fleet finds
the relay that has it.

Example:
   ferry ctl close 6a1c3f5e-0d2b-4c7a-9e8f-112233445566`,
		Flags: answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.End(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlUsage() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "usage", Usage: "player-seconds, datagrams and bytes of each project, since the start",
		Description: "Examples:\n   ferry ctl usage -o json\n   ferry ctl usage --node 3f2a",
		Flags:       append(watchFlags(), nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Usage(ctx, o, cmd.String("node"))
	})
}

func (s streams) ctlConfig() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "config", Usage: "the settings in force, without secrets, and where each came from",
		Description: "Example:\n   ferry ctl config",
		Flags:       answerFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Settings(ctx, o)
	})
}

func (s streams) ctlReload() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "reload", Usage: "let it read file, certificate and tokens again, as SIGHUP does",
		Description: `Tokens, issuers, quotas, the admission program, webhooks, the limits of requests
and of what an allocation may relay, max_outstanding, max_seats, log_level, the
certificate and the token of the admin pages change at once; the rest is named,
and changes with the next start. Settings that cannot be used are refused as a
whole. What is under way goes on: calls, webhooks that wait, counts of limits.

Example:
   ferry ctl reload`,
		Flags: answerFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error { return c.Reload(ctx, o) })
}

func (s streams) ctlLogLevel() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "log-level", Usage: "show the level of the log, or change it", ArgsUsage: "[LEVEL]",
		Description: "LEVEL is debug, info, warn or error.\n\nExample:\n   ferry ctl log-level debug",
		Flags:       answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Level(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlDrain() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "drain", Usage: "take no new allocations, and end when the others have", ArgsUsage: "[NODE]",
		Description: `NODE is an id of ferry ctl nodes, or as much of its beginning as is no other's, 4
characters at least. An API process of a fleet drains any relay of it, and ferry ctl
nodes shows that within a heartbeat (2 s); the relay itself, only itself. Without
NODE it is the process whose pages are asked.

Examples:
   ferry ctl drain --deadline 30m
   ferry ctl drain 3f2a --threshold 10`,
		Flags: append(answerFlags(),
			&cli.DurationFlag{Name: "deadline", Usage: "end after that whatever is left, up to 168h; 0: never", DefaultText: "drain_timeout, or 1h"},
			&cli.IntFlag{Name: "threshold", Usage: "end when no more than `NUMBER` allocations are left", DefaultText: "drain_threshold"},
		),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		query := url.Values{}
		if cmd.IsSet("deadline") {
			query.Set("deadline", cmd.Duration("deadline").String())
		}
		if cmd.IsSet("threshold") {
			query.Set("threshold", fmt.Sprint(cmd.Int("threshold")))
		}
		return c.Drain(ctx, o, cmd.Args().First(), query)
	})
}

func (s streams) ctlUndrain() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "undrain", Usage: "take new allocations again", ArgsUsage: "[NODE]",
		Description: "NODE is as for ferry ctl drain.\n\nExamples:\n   ferry ctl undrain\n   ferry ctl undrain 3f2a",
		Flags:       answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Undrain(ctx, o, cmd.Args().First())
	})
}
