package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/app"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/store/redis"
)

func (s streams) relay() *cli.Command {
	return s.command(&cli.Command{
		Name:  "relay",
		Usage: "one relay of a fleet, without an API",
		Description: `Relays for players whom the API processes of its fleet (ferry api) send here. It
tells the store that it is there, how many seats it has, and which matches it
holds; while the store is away its matches go on. API processes reach it at
--cluster, which belongs into a private network, and know it by its certificate.

Players come in by UDP and DTLS at --udp, and by WebSocket at --http, where nothing
else answers. A restart ends no match, as with ferry serve.

Examples:
   ferry ctl cluster-ca /etc/ferry relay --state-dir /var/lib/ferry
   ferry relay --config /etc/ferry/ferry.yaml --region eu
   ferry ctl drain --deadline 1h

   # ferry.yaml
   store: redis://10.0.0.5:6379
   cluster: 10.0.0.7:7779
   cluster_ca: /etc/ferry/ca.pem
   cluster_cert: /etc/ferry/relay.pem
   cluster_key: /etc/ferry/relay-key.pem
   advertise: 203.0.113.7
   region: eu

ferry check --role relay -c ferry.yaml shows what is in force.`,
		Flags:  config.Flags(config.Serve()),
		Action: s.withState(app.Relay),
	})
}

func (s streams) api() *cli.Command {
	return s.command(&cli.Command{
		Name:  "api",
		Usage: "one of any number of API processes of a fleet, without a relay",
		Description: `Answers the calls of players and backends, at --http, for all relays of its fleet
(ferry relay): it finds them in the store, places new matches among them, and keeps
nothing. Run two or more behind a load balancer; who was cut off calls the next.

While the store is away, calls that need it are answered with 503 and Retry-After.
The process stays ready, so that a load balancer does not lose all of them at once.

Examples:
   ferry ctl cluster-ca /etc/ferry api
   ferry api --config /etc/ferry/ferry.yaml --http 0.0.0.0:7777
   ferry ctl nodes                          this process and all relays

   # ferry.yaml
   store: redis://10.0.0.5:6379
   cluster_ca: /etc/ferry/ca.pem
   cluster_cert: /etc/ferry/api.pem
   cluster_key: /etc/ferry/api-key.pem
   behind_proxy: true
   trusted_proxies: 10.0.0.0/8
   tokens:
     - secret_file: /etc/ferry/token
       project: my-game
       environment: production

ferry check --role api -c ferry.yaml shows what is in force.`,
		Flags: config.Flags(config.Serve()),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			o, err := s.options(cmd, app.API)
			if err != nil {
				return err
			}
			redisstore.SetLogger(o.Logger)
			return s.start(ctx, o)
		},
	})
}
