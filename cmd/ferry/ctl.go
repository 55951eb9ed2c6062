package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/google/uuid"
	"github.com/urfave/cli/v3"
)

func (s streams) ctl() *cli.Command {
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
		Commands: []*cli.Command{
			s.ctlNodes(), s.ctlAllocations(), s.ctlPlayers(), s.ctlWhy(), s.ctlTimeline(), s.ctlCapture(), s.ctlKick(), s.ctlClose(),
			s.ctlBans(), s.ctlBan(), s.ctlUnban(), s.ctlUsage(),
			s.ctlConfig(), s.ctlReload(), s.ctlUpgrade(), s.ctlLogLevel(), s.ctlFastPath(), s.ctlDrain(), s.ctlUndrain(), s.ctlClusterCA(),
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
	}
	c.Action = func(_ context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return unknownCommand(cmd, "ctl has no command %q")
		}
		return cli.ShowSubcommandHelp(cmd)
	}
	return c
}

// adminFlags returns the flags of the connection to the admin pages.
func adminFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "admin", Usage: "`URL` of the admin pages", Value: ctl.DefaultURL},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token of the admin pages [$FERRY_ADMIN_TOKEN_FILE]"},
		caFlag(""),
	}
}

// answerFlags returns the flags of the output format.
func answerFlags() []cli.Flag { return formatFlags("table or json") }

// formatFlags returns answerFlags with these formats.
func formatFlags(formats string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "output `FORMAT`: " + formats, Value: "table"},
		&cli.BoolFlag{Name: "curl", Usage: "print the equivalent curl command instead of making the call"},
	}
}

// watchFlags returns answerFlags and the flags of repeated output.
func watchFlags() []cli.Flag { return watchFormatFlags("table or json") }

// watchFormatFlags returns watchFlags with these formats.
func watchFormatFlags(formats string) []cli.Flag {
	return append(formatFlags(formats),
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "repeat the output"},
		everyFlag(), timesFlag(),
	)
}

func everyFlag() cli.Flag {
	return &cli.DurationFlag{Name: "every", Usage: "interval between two updates, 100ms to 1h", Value: 2 * time.Second}
}

func timesFlag() cli.Flag {
	return &cli.IntFlag{Name: "times", Aliases: []string{"n"}, Usage: "stop after `NUMBER` updates; 0: never"}
}

// ctlAction is the action of a command after its flags are read.
type ctlAction func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error

// ctlCommand completes a command with the arguments of its ArgsUsage. Those in
// brackets are optional.
func (s streams) ctlCommand(c *cli.Command, do ctlAction) *cli.Command {
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
		Name: "nodes", Usage: "list this process, or all processes of a fleet",
		Description: "Example:\n   ferry ctl nodes --watch",
		Flags:       watchFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error { return c.Nodes(ctx, o) })
}

func nodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "node", Usage: "use the relay `NODE` of a fleet, as for ferry ctl drain (API processes only)"}
}

func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Usage: "show at most `NUMBER` allocations; 0: all", Value: 100}
}

func checkLimit(cmd *cli.Command) error {
	if n := cmd.Int("limit"); n < 0 {
		return usage(cmd, fmt.Errorf("--limit: %d is negative", n))
	}
	return nil
}

func (s streams) ctlAllocations() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "allocations", Usage: "list allocations: hosts, players, reservations",
		Description: `AGE is the time since the reservation, or since the recovery after a restart. HEARD is
the time since the last datagram of the player. ENDPOINT is unknown for players over
DTLS and WebSocket. SENT and BYTES count what the relay has forwarded from the player;
the console shows their rates. TOO-LARGE counts dropped messages to the player that
exceed websocket_max_message or dtls_max_message, MAYBE-TOO-LARGE those that were forwarded
but may be too large for its client: ferry ctl why says the cure.

Examples:
   ferry ctl allocations --role host --limit 0
   ferry ctl allocations --match 6a1c3f5e-0d2b-4c7a-9e8f-112233445566
   ferry ctl allocations --project my-game
   ferry ctl allocations --project my-game --environment production --bound false -o json
   ferry ctl allocations --node 3f2a          a relay of a fleet, by an API process`,
		Flags: append(watchFlags(),
			&cli.StringFlag{Name: "project", Usage: "show allocations of project `NAME`, of all its environments without --environment"},
			&cli.StringFlag{Name: "environment", Usage: "show allocations of environment `NAME`; requires --project"},
			&cli.StringFlag{Name: "tenant", Usage: "show allocations of a tenant by its `DIGEST`, 16 hexadecimal digits"},
			&cli.StringFlag{Name: "role", Usage: "show allocations of `ROLE`: host or joiner"},
			&cli.StringFlag{Name: "match", Usage: "show the host `ID` and its players"},
			&cli.StringFlag{Name: "bound", Usage: "show bound (true) or unbound (false) allocations"},
			&cli.StringFlag{Name: "transport", Usage: "show allocations of `TRANSPORT`: udp4, udp6, dtls, ws or another of the relay's"},
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
		Name: "players", Usage: "list the players of a host", ArgsUsage: "HOST",
		Description: "Example:\n   ferry ctl players 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --watch",
		Flags:       append(watchFlags(), limitFlag(), nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		if err := checkLimit(cmd); err != nil {
			return err
		}
		return c.Players(ctx, o, cmd.String("node"), cmd.Args().First(), cmd.Int("limit"))
	})
}

func (s streams) ctlWhy() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "why", Usage: "explain why a player is not in its match", ArgsUsage: "CODE|ID",
		Description: `Says in one sentence why a player, or a host, is not in its match, and lists what
happened to its allocation, also if that has ended lately. For a host or its join code
it says the same about each player that joined. An API process asks all relays.

Examples:
   ferry ctl why QX7KPD
   ferry ctl why 2f4e6d8c-1b3a-4958-8776-665544332211`,
		Flags: append(answerFlags(), nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Why(ctx, o, cmd.String("node"), cmd.Args().First())
	})
}

func (s streams) ctlTimeline() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "timeline", Usage: "show what happened to the allocations of a project", ArgsUsage: "PROJECT",
		Description: `PROJECT is the name of a project, without an environment: ferry ctl usage lists the names.
Lists what happened lately to its allocations in all environments, live or ended (reserved,
code, joined, bound, linked, unlinked, refused, dropped, migrated, returned, ended), and
which of its calls of the API were refused and why, the newest last. TIME is that of the
last of COUNT equal events, and WITH the other allocation, or the endpoint. A relay keeps
the last 50,000 events of all projects, and loses them in a restart, but not in an upgrade.
An API process asks all relays, and adds the calls that it refused itself.

Examples:
   ferry ctl timeline my-game
   ferry ctl timeline my-game --limit 20 --watch`,
		Flags: append(watchFlags(), nodeFlag(), &cli.IntFlag{Name: "limit", Usage: "show the last `NUMBER` events, 1 to 1000", Value: 100}),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		n := cmd.Int("limit")
		if n < 1 || n > 1000 {
			return usage(cmd, fmt.Errorf("--limit: %d is not within 1 to 1000", n))
		}
		return c.Timeline(ctx, o, cmd.String("node"), cmd.Args().First(), n)
	})
}

func (s streams) ctlCapture() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "capture", Usage: "write the messages of a match to a file for Wireshark", ArgsUsage: "CODE|ID",
		Description: `Writes what the relay receives from the players of a match and what it sends to them, with
the outcome of each message, in pcapng. It contains what the players send each other, but
no connection data and no HMAC. The relay must allow it (setting capture), and records it
in its audit log. An API process finds the relay, captures for 8 s at most and keeps
1 MB; a relay keeps 64 MB. Wireshark and tshark decode the messages with
scripts/wireshark/ferry.lua.

Examples:
   ferry ctl capture QX7KPD --seconds 10 -w match.pcapng
   ferry ctl capture QX7KPD -w - | tshark -X lua_script:ferry.lua -r -`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "write", Aliases: []string{"w"}, Usage: "write to `FILE`; -: the standard output", Required: true},
			&cli.IntFlag{Name: "seconds", Usage: "capture for `NUMBER` seconds, 1 to 60", Value: 5},
			&cli.BoolFlag{Name: "curl", Usage: "print the equivalent curl command instead of making the call"},
		}, nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		n := cmd.Int("seconds")
		if n < 1 || n > 60 {
			return usage(cmd, fmt.Errorf("--seconds: %d is not within 1 to 60", n))
		}
		return c.Capture(ctx, o, cmd.String("node"), cmd.Args().First(), cmd.String("write"), n)
	})
}

func (s streams) ctlClose() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "close", Usage: "end an allocation; for a host, this ends its match", ArgsUsage: "ID",
		Description: `Ends an allocation as if its client had closed it: its join code becomes invalid at
once, and its peers get a DISCONNECT with their next message. An API process of a fleet
finds the relay of the allocation.

Example:
   ferry ctl close 6a1c3f5e-0d2b-4c7a-9e8f-112233445566`,
		Flags: answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.End(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlUsage() *cli.Command {
	return s.ctlCommand(&cli.Command{
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
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		if cmd.Bool("players") {
			top := cmd.Int("top")
			if top < 1 || top > 1000 {
				return usage(cmd, fmt.Errorf("--top: %d is not within 1 to 1000", top))
			}
			return c.PlayerUsage(ctx, o, cmd.String("node"), url.Values{
				"project": {cmd.String("project")}, "environment": {cmd.String("environment")}, "sort": {cmd.String("sort")},
				"top": {strconv.Itoa(top)},
			})
		}
		for _, name := range []string{"project", "environment", "sort", "top"} {
			if cmd.IsSet(name) {
				return usage(cmd, fmt.Errorf("--%s is for --players", name))
			}
		}
		return c.Usage(ctx, o, cmd.String("node"))
	})
}

func (s streams) ctlConfig() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "config", Usage: "show the settings in force, without secrets, and their sources",
		Description: "Example:\n   ferry ctl config",
		Flags:       answerFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Settings(ctx, o)
	})
}

func (s streams) ctlReload() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "reload", Usage: "reload the settings file, certificate and tokens, as SIGHUP does",
		Description: `Tokens, issuers, quotas, the admission program, webhooks, the limits of requests
and of relayed traffic, max_outstanding, max_seats, log_level, capture, the
certificate and the token of the admin pages change at once; the output names the other
settings, which need a restart. If any setting is invalid, nothing changes. Calls in
progress, queued webhooks and the counters of limits are kept.

Example:
   ferry ctl reload`,
		Flags: answerFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error { return c.Reload(ctx, o) })
}

func (s streams) ctlUpgrade() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "upgrade", Usage: "let a new process of the program on the disk take over, as SIGUSR2 does",
		Description: `For ferry serve on Linux, after its binary or settings that need a restart were
replaced. The running process starts the program again with its arguments. The new one
reads the settings and checks all that can fail; if it fails, the running one goes on and
this command says why. Else the new one takes over all sockets and matches: no datagram
over UDP is lost, sessions of DTLS go on, and WebSockets stay open: the old process passes
their messages on to the new one, and ends when the last of them has. It is refused within
--recover-for after a restart, and in a drain. Listen addresses, transports and the number of
workers must stay the same.

Example:
   ferry ctl upgrade`,
		Flags: answerFlags(),
	}, func(ctx context.Context, _ *cli.Command, c *ctl.Client, o ctl.Output) error { return c.Upgrade(ctx, o) })
}

func (s streams) ctlLogLevel() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "log-level", Usage: "show or change the log level", ArgsUsage: "[LEVEL]",
		Description: "LEVEL is debug, info, warn or error.\n\nExample:\n   ferry ctl log-level debug",
		Flags:       answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Level(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlFastPath() *cli.Command {
	return s.ctlCommand(&cli.Command{
		Name: "fast-path", Usage: "show the program in the kernel, or turn it on or off", ArgsUsage: "[STATE]",
		Description: `STATE is on or off. While it is off, all datagrams go through the sockets; matches go on.
A restart turns it on again, if the setting xdp asks for it.

Example:
   ferry ctl fast-path off`,
		Flags: answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.FastPath(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlDrain() *cli.Command {
	return s.ctlCommand(&cli.Command{
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
			&cli.IntFlag{Name: "threshold", Usage: "exit when at most `NUMBER` allocations are left", DefaultText: "drain_threshold"},
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
		Name: "undrain", Usage: "accept new allocations again", ArgsUsage: "[NODE]",
		Description: "NODE: see ferry ctl drain.\n\nExamples:\n   ferry ctl undrain\n   ferry ctl undrain 3f2a",
		Flags:       answerFlags(),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		return c.Undrain(ctx, o, cmd.Args().First())
	})
}

func (s streams) ctlClusterCA() *cli.Command {
	return &cli.Command{
		Name: "cluster-ca", Usage: "create the certificates of relays and API processes", ArgsUsage: "DIR [ROLE]",
		Description: `Without ROLE: creates the authority, ca.pem and ca-key.pem, in DIR and overwrites
nothing. With ROLE: creates a certificate of that authority and its key there, NAME.pem
and NAME-key.pem. ROLE is api, relay or admin; admin may drain, kick and close, api may
reserve too. The certificate of a relay contains the id of that relay, which is read
from its state directory, or created there. It needs no running ferry.

With revoke as the ROLE: revokes NAME.pem (--name). The list is part of ca.pem: copy that
to every machine of the fleet.

With --out, the certificate and its key are written there instead of DIR, which may then
be read-only, such as a mounted Secret.

With ca-key.pem, anyone can add members to the fleet: keep it off the machines of the
fleet. Each machine needs ca.pem and its own certificate and key, which it reloads
within 10 s of a change.

Examples:
   ferry ctl cluster-ca /etc/ferry
   ferry ctl cluster-ca /etc/ferry api
   ferry ctl cluster-ca /etc/ferry relay --state-dir /var/lib/ferry
   ferry ctl cluster-ca /etc/ferry relay --relay 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --name eu-1
   ferry ctl cluster-ca /etc/ferry revoke --name eu-1`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "state-dir", Usage: "read the relay id from the state directory `DIR`"},
			&cli.StringFlag{Name: "relay", Usage: "use the relay `ID`, if its state directory is elsewhere or in use"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the files and in the certificate", DefaultText: "the role"},
			&cli.StringFlag{Name: "out", Usage: "write certificate and key into `OUT`", DefaultText: "DIR"},
			&cli.DurationFlag{Name: "valid", Usage: "validity of the certificate", DefaultText: "10 years for the authority, otherwise 1 year"},
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			dir, role := cmd.Args().Get(0), rpc.Role(cmd.Args().Get(1))
			switch {
			case dir == "":
				return usage(cmd, errors.New("DIR is missing"))
			case cmd.Args().Len() > 2:
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(2)))
			case role == "":
				return s.makeCA(dir, cmd.Duration("valid"))
			case role == "revoke":
				return s.revokeCert(cmd, dir)
			}
			return s.issueCert(cmd, dir, role)
		},
	}
}

// The files of the authority.
const (
	caFile    = "ca.pem"
	caKeyFile = "ca-key.pem"
)

func (s streams) makeCA(dir string, valid time.Duration) error {
	ca, err := rpc.NewCA("ferry cluster", valid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	cert, key := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	if err := ca.Write(cert, key); err != nil {
		return err
	}
	return s.printFiles(cert, key, ca.NotAfter())
}

// issueCert makes the certificate of one process.
func (s streams) issueCert(cmd *cli.Command, dir string, role rpc.Role) error {
	ca, err := rpc.LoadCA(filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile))
	if err != nil {
		return fmt.Errorf("%w (ferry ctl cluster-ca %s makes one)", err, dir)
	}
	r := rpc.Request{Role: role, Name: cmd.String("name"), Valid: cmd.Duration("valid")}
	if r.Relay, err = relayID(cmd); err != nil {
		return usage(cmd, err)
	}
	name := r.Name
	if name == "" {
		name = string(role)
	}
	if name != filepath.Base(name) || name == "ca" {
		return usage(cmd, fmt.Errorf("--name: %q is no name for its files", name))
	}
	issued, err := ca.Issue(r)
	if err != nil {
		return err
	}
	if out := cmd.String("out"); out != "" {
		dir = out
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	cert, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	if err := issued.Write(cert, key); err != nil {
		return err
	}
	return s.printFiles(cert, key, issued.NotAfter())
}

// revokeCert adds a certificate to the revocation list in the file of the authority.
func (s streams) revokeCert(cmd *cli.Command, dir string) error {
	name := cmd.String("name")
	if name == "" || name != filepath.Base(name) || name == "ca" {
		return usage(cmd, fmt.Errorf("--name: %q is no name of a certificate's files", name))
	}
	trusted, cert := filepath.Join(dir, caFile), filepath.Join(dir, name+".pem")
	ca, err := rpc.LoadCA(trusted, filepath.Join(dir, caKeyFile))
	if err != nil {
		return err
	}
	if err := ca.Revoke(trusted, cert); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.stdout, "%s\nrevokes %s\n", trusted, cert)
	return err
}

func (s streams) printFiles(cert, key string, end time.Time) error {
	_, err := fmt.Fprintf(s.stdout, "%s\n%s\ngood until %s\n", cert, key, end.Format(time.RFC3339))
	return err
}

// relayID returns the relay id of the flags, zero without them.
func relayID(cmd *cli.Command) (id alloc.RelayID, err error) {
	text, dir := cmd.String("relay"), cmd.String("state-dir")
	switch {
	case text != "" && dir != "":
		return id, errors.New("--relay and --state-dir: one is enough")
	case text != "":
		parsed, err := uuid.Parse(text)
		if err != nil {
			return id, fmt.Errorf("--relay: %q is no id such as ferry ctl nodes shows", text)
		}
		return alloc.RelayID(parsed), nil
	case dir == "":
		return id, nil
	}
	opened, err := state.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return id, err
	}
	return opened.Identity.Relay, opened.Close()
}

func (s streams) top() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "show the load of a running relay, updated",
		Description: `Shows allocations, datagrams and bytes per second, drops by reason, and the busiest
projects of the ferry at --admin. The first screen covers the time since its start. On a
terminal, q quits, and left and right select the column that sorts the projects. Without
a terminal, and with --times, it prints one screen after another. An API process of a
fleet shows the sum of all relays, or one of them with --node.

Examples:
   ferry top
   ferry top --every 5s --admin http://127.0.0.1:7778
   ferry top -n 1                             one screen
   ferry top --node 3f2a                      one relay of a fleet`,
		Flags:           append(adminFlags(), everyFlag(), timesFlag(), nodeFlag()),
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.Args().Present() {
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().First()))
			}
			client, o, err := s.ctlClient(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			defer client.Close()
			o.Stdin = os.Stdin
			return client.Top(ctx, o, cmd.String("node"))
		},
	}
}
