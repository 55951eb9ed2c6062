package main

import (
	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/internal/app"
	"github.com/ferryrelay/ferry/internal/config"
)

func (s streams) serve() *cli.Command {
	return s.command(&cli.Command{
		Name:  "serve",
		Usage: "relay and API for the public, on one machine",
		Description: `Callers of the API need a bearer token; tokens stand in the file, each with its
project and environment. Answers of the API carry keys: plain HTTP is refused on
a public address unless a reverse proxy is declared.

A restart ends no match: players come back by themselves within seconds, after a
crash too, as long as --state-dir is the same. With --drain-timeout, the first
SIGTERM or SIGINT lets the matches that run go on to their end; the second ends
the process in order, the third at once.

Players come in by UDP and DTLS on one UDP port, and by WebSocket at / of the
API's port, which is wss with a certificate or behind a proxy. Players are told of
wss only with --advertise-name, the name in the certificate. The certificate's
files are read again within 10 s of a change; with --acme-domains it is fetched and
renewed by ACME instead. Behind a proxy that passes TCP on, --proxy-protocol tells
players apart.

Examples:
   ferry serve --config /etc/ferry/ferry.yaml
   ferry serve -c ferry.yaml --advertise 203.0.113.7 --udp 0.0.0.0:7777,[::]:7777
   FERRY_LOG_FORMAT=json ferry serve -c ferry.yaml --behind-proxy --trusted-proxies 10.0.0.0/8
   ferry serve -c ferry.yaml --drain-timeout 1h

   # ferry.yaml
   advertise: 203.0.113.7
   advertise_name: relay.example.org
   tls_cert: /etc/ferry/cert.pem
   tls_key: /etc/ferry/key.pem
   tokens:
     - secret_file: /etc/ferry/token
       project: my-game
       environment: production
       kind: server                  # or player, the default
   issuers:                          # whose tokens players bring
     - issuer: https://id.example.org
       audience: my-relay
       jwks_url: https://id.example.org/.well-known/jwks.json
       project: my-game
       environment: production

ferry check -c ferry.yaml shows what is in force.`,
		Flags:  config.Flags(config.Serve()),
		Action: s.withState(app.Serve),
	})
}
