package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ping"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func pingCommand(s streams) *cli.Command {
	const always = "Until stopped"
	return &cli.Command{
		Name:      "ping",
		Usage:     "measure regions and play small matches through a relay, once or for ever",
		ArgsUsage: "URL | HOST:PORT ...",
		Description: `Measures the regions of the API at URL over UDP, as games do to choose one, and plays a small
match over each transport that the relay offers, as players do: allocate, join code, join, bind,
connect, 30 datagrams to the host and back, close. CONNECTED is the time from the call to
allocate until the player is linked to its host. A match's round trip is that to the host and
back, two passes of the relay. A match takes two seats, a second or two, and three calls.

HOST:PORT is a relay that is only measured: without an API, a token and a match.

The exit code is 1 if a match fails or, without a URL, if no relay answers.

With --every, it plays until it is stopped, as a canary. Run it outside of the relay's network:
it sees what players see. Its log has a line when a transport begins to work, fails or works
again; the metrics at /metrics of --listen count each match:

   ferry_canary_matches_total{transport,result}   result is ok or the step that failed
   ferry_canary_last_success_seconds{transport}   time of the last match that was played
   ferry_canary_datagrams_total{transport}, ferry_canary_lost_total{transport}
   ferry_canary_round_trip_seconds{transport}     to the host and back, two passes of the relay
   ferry_canary_preparation_seconds{transport}    from the allocation to the link

With --report, the console of that process and /canaries show the success rate of the last
hour, the time until a player is in, and since when a transport fails. In a fleet, name each
API process.

Examples:
   ferry ping http://127.0.0.1:7777
   ferry ping https://relay.example.org:7777 --token-file token --transport wss
   ferry ping relay.example.org:7777 203.0.113.7:7777
   ferry ping http://127.0.0.1:7777 --every 10s --report http://127.0.0.1:7778`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "token", Usage: "bearer `TOKEN` for the API"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the bearer token"},
			caFlag(""),
			&cli.StringFlag{Name: "region", Usage: "`ID` of the region to measure and to play in; default: all, and chosen by the server"},
			&cli.StringSliceFlag{Name: "transport", Usage: "play over `TRANSPORT`: udp, dtls, ws or wss; default: all that are offered"},
			&cli.BoolFlag{Name: "json", Usage: "write one JSON object"},
			&cli.DurationFlag{Category: always, Name: "every", HideDefault: true,
				Usage: "play until stopped, a match over each transport every `TIME`, 1s to 1h"},
			&cli.StringFlag{Category: always, Name: "listen", Usage: "`HOST:PORT` of the metrics", Value: "127.0.0.1:7780"},
			&cli.StringSliceFlag{Category: always, Name: "report", Usage: "report to the admin pages at `URL`, once a round; may be repeated"},
			&cli.StringFlag{Category: always, Name: "report-token-file", Usage: "`FILE` with the token of the admin pages"},
			&cli.StringFlag{Category: always, Name: "name", Usage: "`NAME` of the canary in its reports; default: the name of the host"},
		},
		Action: s.runPing,
	}
}

func (s streams) runPing(ctx context.Context, cmd *cli.Command) error {
	if err := checkPing(cmd); err != nil {
		return usage(cmd, err)
	}
	if !namesAPI(cmd) {
		return ping.Relays(ctx, s.stdout, cmd.Args().Slice(), cmd.Bool("json"))
	}
	cfg, err := pingConfig(cmd)
	if err != nil {
		return usage(cmd, err)
	}
	if cmd.IsSet("every") {
		return s.runCanary(ctx, cmd, cfg)
	}
	return ping.Once(ctx, s.stdout, cfg, cmd.Bool("json"))
}

// namesAPI reports whether the argument is a URL, not a relay.
func namesAPI(cmd *cli.Command) bool { return strings.Contains(cmd.Args().First(), "://") }

func checkPing(cmd *cli.Command) error {
	args, api := cmd.Args(), namesAPI(cmd)
	switch {
	case !args.Present():
		return errors.New("give the URL of an API, or relays as HOST:PORT")
	case api && args.Len() > 1:
		return fmt.Errorf("unexpected argument %q", args.Get(1))
	}
	every, report := cmd.IsSet("every"), cmd.IsSet("report")
	for _, name := range cmd.FlagNames() {
		switch ofReport := name == "report-token-file" || name == "name"; {
		case !api && name != "json":
			return fmt.Errorf("--%s is for the URL of an API", name)
		case !every && (ofReport || name == "report" || name == "listen"):
			return fmt.Errorf("--%s is for --every", name)
		case !report && ofReport:
			return fmt.Errorf("--%s is for --report", name)
		case every && name == "json":
			return errors.New("--json is not for --every, which has metrics")
		}
	}
	for _, addr := range args.Slice() {
		if _, port, err := net.SplitHostPort(addr); !api && (err != nil || port == "") {
			return fmt.Errorf("%q is neither a URL nor HOST:PORT", addr)
		}
	}
	return nil
}

func pingConfig(cmd *cli.Command) (ping.Config, error) {
	cfg := ping.Config{Region: cmd.String("region"), Transports: cmd.StringSlice("transport")}
	token, err := readToken(cmd)
	if err != nil {
		return cfg, err
	}
	cfg.API = &api.Client{BaseURL: cmd.Args().First(), Token: token}
	if cfg.TLS, err = trust(cmd); cfg.TLS != nil {
		cfg.API.HTTP = &http.Client{
			Timeout: api.DefaultTimeout, Transport: &http.Transport{TLSClientConfig: cfg.TLS},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // with the token
		}
	}
	if err != nil {
		return cfg, err
	}
	return cfg, cfg.Check()
}

func (s streams) runCanary(ctx context.Context, cmd *cli.Command, cfg ping.Config) error {
	logger, _ := newLogger(s.stderr, config.Serve())
	canary := ping.CanaryConfig{Config: cfg, Every: cmd.Duration("every"), Name: cmd.String("name"), Logger: logger}
	if canary.Name == "" {
		canary.Name, _ = os.Hostname() // A report without a name is refused.
	}
	consoles, err := reportClients(cmd)
	if err != nil {
		return usage(cmd, err)
	}
	if len(consoles) > 0 {
		canary.Report = func(ctx context.Context, r operator.CanaryReport) error {
			var errs []error
			for _, c := range consoles {
				errs = append(errs, c.ReportCanary(ctx, r))
			}
			return errors.Join(errs...)
		}
	}
	for _, c := range consoles {
		defer c.Close()
	}
	c, err := ping.NewCanary(canary)
	if err != nil {
		return usage(cmd, err)
	}
	listener, err := net.Listen("tcp", cmd.String("listen"))
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(s.stdout, "ready metrics=http://%s/metrics\n", listener.Addr())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", c)
	srv := httpapi.NewServer(mux)
	var playing sync.WaitGroup
	playing.Go(func() { c.Run(ctx); srv.Close() })
	err = srv.Serve(listener)
	if ctx.Err() != nil {
		err = nil
	}
	playing.Wait()
	return err
}

func reportClients(cmd *cli.Command) (all []*ctl.Client, err error) {
	for _, url := range cmd.StringSlice("report") {
		c, err := ctl.New(ctl.Config{URL: url, Flag: "--report", TokenFile: cmd.String("report-token-file"), CAFile: cmd.String("ca")})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
