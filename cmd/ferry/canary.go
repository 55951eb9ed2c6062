package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/canary"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func (s streams) canary() *cli.Command {
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

A match takes two seats and ends within seconds. The token's limits of requests apply:
three calls a match.

Examples:
   ferry canary --api http://127.0.0.1:7777
   ferry canary --api https://relay.example.org:7777 --token-file token --transport udp,dtls,wss`,
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
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			p, err := s.newCanary(cmd)
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

func (s streams) newCanary(cmd *cli.Command) (*canary.Canary, error) {
	token, err := readToken(cmd)
	if err != nil {
		return nil, err
	}
	secure, err := trust(cmd)
	if err != nil {
		return nil, err
	}
	caller := &api.Client{BaseURL: cmd.String("api"), Token: token}
	if caller.HTTP, err = apiClient(cmd); err != nil {
		return nil, err
	}
	logger, _ := newLogger(s.stderr, config.Serve())
	return canary.New(canary.Config{
		API: caller, Region: cmd.String("region"), Transports: cmd.StringSlice("transport"), Interval: cmd.Duration("interval"),
		Datagrams: cmd.Int("datagrams"), Timeout: cmd.Duration("timeout"), TLS: secure, Logger: logger,
	})
}
