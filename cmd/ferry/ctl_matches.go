package main

import (
	"context"
	"fmt"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/urfave/cli/v3"
)

func allocationsCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "allocations", Usage: "list allocations: hosts, players, reservations",
		Description: `AGE is the time since the reservation, or since the recovery after a restart. HEARD is
the time since the last datagram of the player. ENDPOINT is unknown for players over
DTLS and WebSocket. SENT and BYTES count what the relay has forwarded from the player;
the console shows their rates. TOO-LARGE counts dropped messages to the player that
exceed its transport, MAYBE-TOO-LARGE those that were forwarded
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
	}, showParsed(func(cmd *cli.Command) (ctl.Request, error) {
		limit, err := parseLimit(cmd)
		return ctl.Allocations(cmd.String("node"), operator.AllocationsQuery{
			Project: cmd.String("project"), Environment: cmd.String("environment"), Tenant: cmd.String("tenant"),
			Role: cmd.String("role"), Match: cmd.String("match"), Bound: cmd.String("bound"),
			Transport: cmd.String("transport"), Limit: limit,
		}), err
	})}
}

func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Usage: "show at most `NUMBER` allocations; 0: all", Value: 100}
}

func parseLimit(cmd *cli.Command) (int, error) {
	n := cmd.Int("limit")
	if n < 0 {
		return 0, fmt.Errorf("--limit: %d is negative", n)
	}
	return n, nil
}

func playersCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "players", Usage: "list the players of a host", ArgsUsage: "HOST",
		Description: "Example:\n   ferry ctl players 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --watch",
		Flags:       append(watchFlags(), limitFlag(), nodeFlag()),
	}, showParsed(func(cmd *cli.Command) (ctl.Request, error) {
		limit, err := parseLimit(cmd)
		return ctl.Players(cmd.String("node"), operator.AllocationsQuery{Host: cmd.Args().First(), Limit: limit}), err
	})}
}

func whyCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "why", Usage: "explain why a player is not in its match", ArgsUsage: "CODE|ID",
		Description: `Says in one sentence why a player, or a host, is not in its match, and lists what
happened to its allocation, also if that has ended lately. For a host or its join code
it says the same about each player that joined. An API process asks all relays.

Examples:
   ferry ctl why QX7KPD
   ferry ctl why 2f4e6d8c-1b3a-4958-8776-665544332211`,
		Flags: append(answerFlags(), nodeFlag()),
	}, showParsed(func(cmd *cli.Command) (ctl.Request, error) {
		return ctl.Why(cmd.String("node"), cmd.Args().First()), nil
	})}
}

func timelineCommand() ctlCommand {
	return ctlCommand{&cli.Command{
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
	}, showParsed(func(cmd *cli.Command) (ctl.Request, error) {
		n, err := intWithin(cmd, "limit", 1, 1000)
		return ctl.Timeline(cmd.String("node"), operator.TimelineQuery{Project: cmd.Args().First(), Limit: n}), err
	})}
}

func captureCommand() ctlCommand {
	return ctlCommand{&cli.Command{
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
			curlFlag(),
		}, nodeFlag()),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		n, err := intWithin(cmd, "seconds", 1, 60)
		if err != nil {
			return usage(cmd, err)
		}
		return c.Capture(ctx, o, cmd.String("node"), cmd.Args().First(), cmd.String("write"), n)
	}}
}

func kickCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "kick", Usage: "remove a player from its match", ArgsUsage: "PLAYER",
		Description: `Ends the allocation of the player and sends DISCONNECT to both sides. The player can
join again with the join code; ferry ctl ban keeps it out. An API
process of a fleet finds the relay of the player.

Example:
   ferry ctl kick 2f4e6d8c-1b3a-4958-8776-665544332211`,
		Flags: answerFlags(),
	}, showOf(ctl.Kick)}
}

func closeCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "close", Usage: "end an allocation; for a host, this ends its match", ArgsUsage: "ID",
		Description: `Ends an allocation as if its client had closed it: its join code becomes invalid at
once, and its peers get a DISCONNECT with their next message. An API process of a fleet
finds the relay of the allocation.

Example:
   ferry ctl close 6a1c3f5e-0d2b-4c7a-9e8f-112233445566`,
		Flags: answerFlags(),
	}, showOf(ctl.End)}
}
