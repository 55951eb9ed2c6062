package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/urfave/cli/v3"
)

func bansCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "bans", Usage: "list banned players and networks",
		Description: "Example:\n   ferry ctl bans",
		Flags:       answerFlags(),
	}, show(ctl.Bans)}
}

func banCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "ban", Usage: "ban a network or a player for a time", ArgsUsage: "[PREFIX]",
		Description: `PREFIX is a network or an address; an IPv6 address stands for its /56. No player can allocate,
join, bind or connect from there, and players that play from there over UDP or WebSocket
are removed at once. Backends with a token of kind server can call the API from there.
With --player it bans a player of a project, which is a subject of an issuer's tokens or a
player that a backend names: its calls, and those for it, are refused with 403 and the
reason, and its allocations end. A name that many players may share, as that of a static
token, is refused. A ban survives restarts. An API process bans in its whole fleet, within
2 s.

It prints first what the ban ends now and shuts out, and asks for confirmation; a script
gives --yes.

Examples:
   ferry ctl ban 192.0.2.7 --for 1h --reason "flood"
   ferry ctl ban 2001:db8:7::/48 --yes
   ferry ctl ban --player ann --project my-game --environment production --for 168h --reason "cheats"`,
		Flags: append(append(answerFlags(), bannedPlayerFlags()...),
			&cli.DurationFlag{Name: "for", Usage: "ban for this time, 1s to 10 years", Value: 24 * time.Hour},
			&cli.StringFlag{Name: "reason", Usage: "`TEXT` for the player and for ferry ctl bans"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "ban without a question"},
		),
	}, func(ctx context.Context, cmd *cli.Command, c *ctl.Client, o ctl.Output) error {
		query, err := banQuery(cmd, "name a PREFIX or a --player")
		if err != nil {
			return usage(cmd, err)
		}
		query.For, query.Reason, query.Prefix = cmd.Duration("for").String(), cmd.String("reason"), cmd.Args().First()
		o.Stdin = os.Stdin
		return c.Ban(ctx, o, query, cmd.Bool("yes"))
	}}
}

func bannedPlayerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "player", Usage: "the player `NAME`; requires --project and --environment"},
		&cli.StringFlag{Name: "project", Usage: "`NAME` of the player's project"},
		&cli.StringFlag{Name: "environment", Usage: "`NAME` of the player's environment"},
	}
}

// banQuery returns the player of the flags, or nothing if there is an argument instead.
func banQuery(cmd *cli.Command, neither string) (operator.BanQuery, error) {
	query := operator.BanQuery{Player: cmd.String("player"), Project: cmd.String("project"), Environment: cmd.String("environment")}
	if cmd.Args().Present() == (query.Player != "") {
		return query, errors.New(neither)
	}
	return query, nil
}

func unbanCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "unban", Usage: "remove bans", ArgsUsage: "[BAN|PREFIX]",
		Description: `BAN is an id of ferry ctl bans. With a PREFIX, all bans of that network and of networks inside
it are removed. It prints each ban that it removed, and those of wider networks that still
apply; if there is nothing to remove, it fails and says why.

Examples:
   ferry ctl unban 5f0c2a1d9b3e7046
   ferry ctl unban 10.0.0.0/8
   ferry ctl unban --player ann --project my-game --environment production`,
		Flags: append(answerFlags(), bannedPlayerFlags()...),
	}, showParsed(func(cmd *cli.Command) (r ctl.Request, err error) {
		query, err := banQuery(cmd, "name a BAN, a PREFIX or a --player")
		if err != nil {
			return r, err
		}
		return ctl.Unban(cmd.Args().First(), query), nil
	})}
}
