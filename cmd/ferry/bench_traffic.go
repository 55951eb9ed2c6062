package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/traffic"
	"github.com/urfave/cli/v3"
)

func trafficHostFlag(category string) cli.Flag {
	return &cli.StringFlag{Category: category, Name: "traffic-host",
		Usage: "`ADDRESS`, ADDRESS:PORT or allocation id of the host in a capture of --traffic; default what all its datagrams have in common"}
}

func setTraffic(cfg *bench.Config, cmd *cli.Command) (err error) {
	if !cmd.IsSet("traffic") {
		return nil
	}
	cfg.Traffic, err = traffic.Read(cmd.String("traffic"), traffic.Options{Players: cfg.Players, Host: cmd.String("traffic-host")})
	if err != nil {
		return err
	}
	if !cmd.IsSet("matches") {
		cfg.Matches = defaultMatches
	}
	cfg.Shape, cfg.Direction, cfg.Players = "", "", cfg.Traffic.Players
	return nil
}

func benchTrafficCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:  "traffic",
		Usage: "list the profiles of games, print one, or derive one from a capture",
		Description: `Without an argument, lists the profiles for --traffic. With one, prints the profile
or the file of flows (YAML), which --traffic reads too. A capture (pcap, pcapng)
becomes flows with about its rates, bursts and sizes; --traffic with the capture
itself sends its exact times and sizes.

The capture has one match: games without a relay, or messages of this relay over UDP,
at the relay, at the host or at a player.

Examples:
   ferry bench traffic
   ferry bench traffic movement-20p-30hz > mine.yaml
   ferry bench traffic --traffic-host 10.0.0.5:7777 match.pcapng > mine.yaml
   ferry bench --traffic mine.yaml --matches 50`,
		ArgsUsage:       "[NAME|FILE]",
		Flags:           []cli.Flag{trafficHostFlag("")},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.NArg() > 1 {
				return usage(cmd, fmt.Errorf("%d files, want one", cmd.NArg()))
			}
			if cmd.NArg() == 0 {
				_, err := fmt.Fprintln(s.stdout, strings.Join(traffic.Names(), "\n"))
				return err
			}
			text, err := traffic.Text(cmd.Args().First(), traffic.Options{Host: cmd.String("traffic-host")})
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(text)
			return err
		},
	}
}
