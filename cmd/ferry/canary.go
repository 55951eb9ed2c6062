package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/canary"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func canaryCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "canary",
		Usage: "play small matches through a relay for ever, with metrics for Prometheus",
		Description: `Plays a match over each --transport at each --interval, as players do: allocate, join code, join,
bind, connect, 30 datagrams a second to the host and back, close. Run it outside of the
relay's network: it sees what players see. Its log has a line when a transport begins to
work, fails or works again; the metrics at /metrics of --listen count each match:

   ferry_canary_matches_total{transport,result}   result is ok or the step that failed
   ferry_canary_last_success_seconds{transport}   time of the last match that was played
   ferry_canary_datagrams_total{transport}, ferry_canary_lost_total{transport}
   ferry_canary_round_trip_seconds{transport}     to the host and back, two passes of the relay
   ferry_canary_preparation_seconds{transport}    from the allocation to the link

With --report, the console of that process and /canaries show the success rate of the last
hour, the time until a player is in, and since when a transport fails. In a fleet, name each
API process.

A match takes two seats and ends within seconds. The token's limits of requests apply:
three calls a match.

Examples:
   ferry canary --api http://127.0.0.1:7777
   ferry canary --api https://relay.example.org:7777 --token-file token --transport udp,dtls,wss
   ferry canary --api http://127.0.0.1:7777 --report http://127.0.0.1:7778`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "api", Usage: "`URL` of the relay's API", Value: "http://127.0.0.1:7777"},
			&cli.StringFlag{Name: "token", Usage: "bearer `TOKEN` for the API"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the bearer token"},
			caFlag(""),
			&cli.StringFlag{Name: "region", Usage: "`ID` of the region to allocate in; default: chosen by the server"},
			&cli.StringSliceFlag{Name: "transport", Usage: "play over `TRANSPORT`: udp, dtls, ws or wss", Value: []string{"udp"}},
			&cli.DurationFlag{Name: "interval", Usage: "time between two rounds of matches, 1s to 1h", Value: 10 * time.Second},
			&cli.IntFlag{Name: "datagrams", Usage: "`NUMBER` of datagrams of each match, 1 to 10000", Value: 30},
			&cli.DurationFlag{Name: "timeout", Usage: "timeout of a match, 1s to 1m", Value: 20 * time.Second},
			&cli.StringFlag{Name: "listen", Usage: "`HOST:PORT` of the metrics", Value: "127.0.0.1:7780"},
			&cli.StringSliceFlag{Name: "report", Usage: "report to the admin pages at `URL`, once a round; may be repeated"},
			&cli.StringFlag{Name: "report-token-file", Usage: "`FILE` with the token of the admin pages"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the canary in its reports; default: the name of the host"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			consoles, err := reportClients(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			for _, c := range consoles {
				defer c.Close()
			}
			p, err := s.newCanary(cmd, consoles)
			if err != nil {
				return usage(cmd, err)
			}
			listener, err := net.Listen("tcp", cmd.String("listen"))
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			fmt.Fprintf(s.stdout, "ready metrics=http://%s/metrics\n", listener.Addr())
			mux := http.NewServeMux()
			mux.Handle("GET /metrics", p)
			srv := httpapi.NewServer(mux)
			var playing sync.WaitGroup
			playing.Go(func() { p.Run(ctx); srv.Close() })
			err = srv.Serve(listener)
			if ctx.Err() != nil {
				err = nil
			}
			playing.Wait()
			return err
		},
	})
}

// reportClients returns the clients of --report.
func reportClients(cmd *cli.Command) (all []*ctl.Client, err error) {
	urls, token := cmd.StringSlice("report"), cmd.String("report-token-file")
	if len(urls) == 0 && (token != "" || cmd.IsSet("name")) {
		return nil, errors.New("--report-token-file and --name are for --report")
	}
	for _, url := range urls {
		c, err := ctl.New(ctl.Config{URL: url, Flag: "--report", TokenFile: token, CAFile: cmd.String("ca")})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (s streams) newCanary(cmd *cli.Command, consoles []*ctl.Client) (*canary.Canary, error) {
	caller, err := apiClient(cmd)
	if err != nil {
		return nil, err
	}
	secure, err := trust(cmd)
	if err != nil {
		return nil, err
	}
	logger, _ := newLogger(s.stderr, config.Serve())
	var report func(context.Context, operator.CanaryReport) error
	if len(consoles) > 0 {
		report = func(ctx context.Context, r operator.CanaryReport) error {
			var errs []error
			for _, c := range consoles {
				errs = append(errs, c.ReportCanary(ctx, r))
			}
			return errors.Join(errs...)
		}
	}
	name := cmd.String("name")
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("--name: %w", err)
		}
	}
	return canary.New(canary.Config{
		Name: name, Report: report, API: &caller, Region: cmd.String("region"),
		Transports: cmd.StringSlice("transport"), Interval: cmd.Duration("interval"),
		Datagrams: cmd.Int("datagrams"), Timeout: cmd.Duration("timeout"), TLS: secure, Logger: logger,
	})
}
