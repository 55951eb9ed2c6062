package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/urfave/cli/v3"
)

func benchFlags() []cli.Flag {
	return slices.Concat(targetFlags(), loadFlags(), outputFlags(), fileFlags())
}

func targetFlags() []cli.Flag {
	const category = "Target"
	return []cli.Flag{
		&cli.StringFlag{Category: category, Name: "dialect", Value: "ferry",
			Usage: "`NAME` of the dialect: ferry, turn (coturn and other TURN servers), swap (forwards by source address, see ferry bench null) or direct (no relay)"},
		&cli.StringFlag{Category: category, Name: "api", Value: "http://127.0.0.1:7777", Usage: "`URL` of the API, for ferry"},
		&cli.StringFlag{Category: category, Name: "token", Usage: "bearer `TOKEN` for the API"},
		&cli.StringFlag{Category: category, Name: "token-file", Usage: "`FILE` with the bearer token"},
		caFlag(category),
		&cli.StringFlag{Category: category, Name: "region", Usage: "`ID` of the region to reserve in"},
		&cli.StringFlag{Category: category, Name: "transport", Value: "udp",
			Usage: "`TRANSPORT` to the relay: udp, dtls, ws or wss; ws and wss for ferry, dtls for ferry and turn"},
		&cli.StringFlag{Category: category, Name: "family",
			Usage: "`FAMILY` of the relay's endpoint: ipv4 or ipv6; default that of --relay, --target or --sources, or ipv4 unless the relay has only ipv6"},
		&cli.StringFlag{Category: category, Name: "relay", Usage: "`ADDRESS:PORT` that replaces the one that the API advertises"},
		&cli.StringFlag{Category: category, Name: "target", Usage: "`ADDRESS:PORT` of a relay with the dialect swap or turn"},
		&cli.StringFlag{Category: category, Name: "turn-user", Usage: "`USER:PASSWORD` for a TURN server; none if it asks for none"},
		&cli.BoolFlag{Category: category, Name: "allow-remote", Usage: "allow targets outside of loopback: only your own machines"},
		&cli.StringFlag{Category: category, Name: "sources",
			Usage: "addresses of the endpoints, a `PREFIX` that is local here (ip route add local PREFIX dev lo) and routed back by the relay's machine; a single address gives each endpoint a socket. Default: of 127.0.0.0/8, or ::1/128"},
		&cli.IntFlag{Category: category, Name: "server-pid", Usage: "process `ID` of the relay, to measure its processor time and memory",
			HideDefault: true},
		&cli.StringFlag{Category: category, Name: "admin",
			Usage: "`URL` of the relay's admin pages, for its version, its workers and what it dropped"},
		&cli.StringFlag{Category: category, Name: "admin-token-file", Usage: "`FILE` with the token of the admin pages"},
		&cli.StringFlag{Category: category, Name: "profile",
			Usage: "`NAME` of the server's limits, for the report; begins with off if there are none; default that of the ferry process --server-pid"},
	}
}

func loadFlags() []cli.Flag {
	const category = "Load"
	return []cli.Flag{
		&cli.StringFlag{Category: category, Name: "shape", Value: "pairs",
			Usage: "`SHAPE` of the load: pairs, star, churn or idle"},
		&cli.StringFlag{Category: category, Name: "traffic",
			Usage: "send what a game sends, instead of --shape: `NAME` of a profile, " + strings.Join(bench.TrafficProfiles(), ", ") +
				". Its speed follows --rate, if that is set"},
		&cli.IntFlag{Category: category, Name: "matches", Usage: fmt.Sprintf("`NUMBER` of hosts; default 200, and %d for --traffic",
			defaultMatches), Value: 200, HideDefault: true},
		&cli.IntFlag{Category: category, Name: "players",
			Usage:       "`NUMBER` of players of each host, 1 to 255; default 10 for a star, 1 for idle, and that of the profile for --traffic; all others have one",
			HideDefault: true},
		&cli.StringFlag{Category: category, Name: "direction", Value: "both",
			Usage: "`DIRECTION` of the datagrams: both, up (to the host) or down"},
		&cli.FloatFlag{Category: category, Name: "rate",
			Usage: fmt.Sprintf("datagrams per second in all; default %d, 0 for churn and idle, and that of the profile for --traffic",
				defaultRate), HideDefault: true},
		&cli.IntFlag{Category: category, Name: "closed", Usage: "closed loop: keep `NUMBER` datagrams of each flow in flight, instead of --rate",
			HideDefault: true},
		&cli.StringFlag{Category: category, Name: "find-max",
			Usage: "search for the highest rate that meets `CONDITIONS`, such as 'loss<0.1%'; starts at --rate"},
		&cli.IntFlag{Category: category, Name: "payload",
			Usage: "`BYTES` of a datagram without the relay's header; default 112", HideDefault: true},
		&cli.DurationFlag{Category: category, Name: "duration", Usage: "measured `TIME`; for idle that of silence", Value: 10 * time.Second},
		&cli.DurationFlag{Category: category, Name: "warmup", Usage: "`TIME` before the measured time", Value: 2 * time.Second},
		&cli.DurationFlag{Category: category, Name: "drain", Usage: "`TIME` to wait for the last datagrams", Value: 500 * time.Millisecond},
		&cli.DurationFlag{Category: category, Name: "keepalive", Usage: "`TIME` after which a silent endpoint sends a PING; 0 for never",
			Value: 3 * time.Second},
		&cli.FloatFlag{Category: category, Name: "bind-rate", Usage: "repeated BINDs per second during the run", HideDefault: true},
		&cli.FloatFlag{Category: category, Name: "replace-rate", Usage: "matches per second that fall silent and are replaced by new ones",
			HideDefault: true},
		&cli.FloatFlag{Category: category, Name: "churn-rate", Usage: "sessions per second of the shape churn", Value: 10},
		&cli.DurationFlag{Category: category, Name: "churn-play", Usage: "`TIME` that each of these sessions sends", Value: time.Second},
		&cli.IntFlag{Category: category, Name: "pin", Usage: "pin the generator's thread to processor `NUMBER`", Value: -1, HideDefault: true},
	}
}

func outputFlags() []cli.Flag {
	const category = "Report"
	return []cli.Flag{
		&cli.StringFlag{Category: category, Name: "name", Usage: "`LABEL` of the run in tables and the plot; default the dialect"},
		&cli.StringFlag{Category: category, Name: "fail",
			Usage: "exit with 1 unless `CONDITIONS` hold, such as 'p99<5ms,loss<0.1%'. Names: valid mean p50 p90 p99 p999 max gap absent loss dup reorder misdelivered corrupt cpu delivered binds"},
		&cli.BoolFlag{Category: category, Name: "quiet", Usage: "print no progress, which costs processor time"},
	}
}
