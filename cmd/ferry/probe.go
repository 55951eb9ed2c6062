package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/probe"
)

func probeCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "probe",
		Usage: "act as a server or client without a game: check connections, relays and Unity peers",
		Description: `Listens or connects, directly or through a relay, prints every event of every
connection, its statistics once in a while, and what was sent and received at the
end. A bad network can be put in between with --sim.

What it speaks:
   netcode      connections of package client/netcode: versions, approval, RPCs,
                commands and snapshots. Both sides have to speak it: another
                probe, or a Go game server or bot.
   entities     Unity Transport 2.x with the pipelines of Netcode for Entities,
   gameobjects  or of Netcode for GameObjects 1.5 and later. This is for Unity
                peers: the connection, its round trip, its losses and what the
                game sends are shown, and what lies in messages is not looked at.
                By layout, not yet verified against a Unity peer.

It ends after --duration, with Ctrl-C, or when the connection of a client ends.
The exit code is 1 if a client was never connected or the link ended.

Examples:
   ferry probe --listen 0.0.0.0:7979 --send 600
   ferry probe --connect 127.0.0.1:7979 --send 40 --sim 4g+regional-median --duration 10s
   ferry probe --host 8 --api http://127.0.0.1:7777                 prints a join code
   ferry probe --join 6BCDFG --api http://127.0.0.1:7777 --json
   ferry probe --join 6BCDFG --api http://127.0.0.1:7777 --speak gameobjects
   ferry probe --connect 192.0.2.7:7979 --speak entities --sim delay=100ms,loss=2`,
		Flags: probeFlags(),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o, err := probeOptions(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			if err = probe.Run(ctx, s.stdout, o); errors.Is(err, probe.ErrOptions) {
				return usage(cmd, err)
			}
			return err
		},
	})
}

func probeFlags() []cli.Flag {
	const side, network, output = "Side", "Bad network", "Output"
	return []cli.Flag{
		&cli.StringFlag{Category: side, Name: "listen", Usage: "accept clients at the UDP `ADDRESS`, with its port"},
		&cli.StringFlag{Category: side, Name: "connect", Usage: "connect to the server at the UDP `ADDRESS`, with its port"},
		&cli.IntFlag{Category: side, Name: "host", Usage: "accept up to `NUMBER` clients through a relay", HideDefault: true},
		&cli.StringFlag{Category: side, Name: "join", Usage: "connect through a relay with the join `CODE`"},
		&cli.StringFlag{Category: side, Name: "api", Usage: "`URL` of the relay's API, for --host and --join"},
		&cli.StringFlag{Category: side, Name: "token", Usage: "bearer `TOKEN` for the API"},
		&cli.StringFlag{Category: side, Name: "token-file", Usage: "`FILE` with the bearer token"},
		caFlag(side),
		&cli.StringFlag{Category: side, Name: "region", Usage: "`NAME` of the region to host in; default: chosen by the server"},
		&cli.StringFlag{Category: side, Name: "speak", Usage: "use `PROTOCOL`: netcode, entities or gameobjects", Value: string(probe.Netcode)},
		&cli.BoolFlag{Category: side, Name: "approve", Usage: "a netcode server approves only clients that send hello, as probes do"},
		&cli.IntFlag{Category: side, Name: "game-version", Usage: "`NUMBER` that must be the same on both sides of netcode"},
		&cli.IntFlag{Category: side, Name: "send", Usage: "`BYTES` to send per tick on each connection: commands and snapshots of netcode, else messages"},
		&cli.IntFlag{Category: side, Name: "pipeline", Usage: "`NUMBER` of the pipeline for these messages, 1 to 3 in the order of the game; 0 for none"},
		&cli.IntFlag{Category: side, Name: "tick-rate", Usage: "ticks per second, 1 to 1000", Value: 30},
		&cli.DurationFlag{Category: side, Name: "duration", Usage: "end after `TIME`; 0 for never"},
		&cli.BoolFlag{Category: side, Name: "once", Usage: "end a server when its last client has left"},
		&cli.StringFlag{Category: network, Name: "sim", Usage: "simulate `NETWORK` in both directions: presets and values, such as 4g, wifi+regional-median or delay=100ms,jitter=10ms,loss=1,duplicate=0.5,reorder=1,corrupt=0.1,mtu=1200"},
		&cli.StringFlag{Category: network, Name: "sim-in", Usage: "simulate `NETWORK` for received datagrams, instead of --sim"},
		&cli.StringFlag{Category: network, Name: "sim-out", Usage: "simulate `NETWORK` for sent datagrams, instead of --sim"},
		&cli.Uint64Flag{Category: network, Name: "seed", Usage: "seed `NUMBER` of the simulation: the same seed gives the same losses"},
		&cli.DurationFlag{Category: output, Name: "stats", Usage: "`TIME` between reports on each connection; 0 for one at the end",
			Value: time.Second},
		&cli.BoolFlag{Category: output, Name: "json", Usage: "write a JSON object per line"},
	}
}

func probeOptions(cmd *cli.Command) (o probe.Options, err error) {
	o = probe.Options{
		Host: cmd.Int("host"), Join: cmd.String("join"), Region: cmd.String("region"),
		Speak: probe.Dialect(cmd.String("speak")), Approve: cmd.Bool("approve"), GameVersion: int32(cmd.Int("game-version")),
		Send: cmd.Int("send"), Pipeline: cmd.Int("pipeline"), TickRate: cmd.Int("tick-rate"),
		Duration: cmd.Duration("duration"), Once: cmd.Bool("once"), Stats: cmd.Duration("stats"),
		Seed: cmd.Uint64("seed"), JSON: cmd.Bool("json"),
	}
	if o.API, err = apiClient(cmd); err != nil {
		return o, err
	}
	for name, to := range map[string]*netip.AddrPort{"listen": &o.Listen, "connect": &o.Connect} {
		if *to, err = addrFlag(cmd, name); err != nil {
			return o, err
		}
	}
	for name, to := range map[string]*link.Conditions{"sim-in": &o.In, "sim-out": &o.Out} {
		if *to, err = link.ParseConditions(cmp.Or(cmd.String(name), cmd.String("sim"))); err != nil {
			return o, fmt.Errorf("--%s or --sim: %w", name, err)
		}
	}
	return o, o.Check()
}
