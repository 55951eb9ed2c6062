package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

func (s streams) benchNull() *cli.Command {
	return s.command(&cli.Command{
		Name:  "null",
		Usage: "run a relay that looks nothing up, to compare with",
		Description: `Relays by arithmetic on the source address, with the sockets of the real relay
and nothing else: the least that a relay on them can cost. It forwards for
anybody who reaches it, so keep it on loopback. It runs until it is interrupted.

Examples:
   ferry bench null --udp 127.0.0.1:7790
   ferry bench null --udp 127.0.0.1:7790 --star     for ferry bench --shape star
   ferry bench --dialect swap --target 127.0.0.1:7790 --rate 5000 --duration 3s`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "udp", Value: "127.0.0.1:7790", Usage: "`ADDRESS:PORT` to listen on, IPv4"},
			&cli.BoolFlag{Name: "star", Usage: "find destinations by the rule of stars"},
			&cli.IntFlag{Name: "batch", Usage: "most datagrams of one system call, 1 to 256; default as of the relay"},
			&cli.IntFlag{Name: "pin", Usage: "tie the relay's thread to processor `NUMBER`", Value: -1, HideDefault: true},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			addr, err := addrFlag(cmd, "udp")
			if err != nil {
				return usage(cmd, err)
			}
			twoProcessors()
			relay, err := benchrig.NewNullRelay(benchrig.NullConfig{
				Addr: addr, Star: cmd.Bool("star"), Batch: cmd.Int("batch"), Pin: cmd.Int("pin") >= 0, CPU: max(cmd.Int("pin"), 0),
			})
			if err != nil {
				return err
			}
			fmt.Fprintln(s.stdout, "listening udp", relay.Addr())
			fmt.Fprintf(s.stdout, "ready udp=%v\n", relay.Addr())
			return relay.Run(ctx)
		},
	})
}
