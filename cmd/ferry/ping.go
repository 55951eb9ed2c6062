package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
)

var (
	errNoAnswer  = errors.New("nothing answered")
	errNoAddress = errors.New("the region does not say where it answers probes")
)

// maxPingProbes is what client.Measure sends at most.
const maxPingProbes = 100

func (s streams) ping() *cli.Command {
	return &cli.Command{
		Name:      "ping",
		Usage:     "measure round trip and loss to regions or relays",
		ArgsUsage: "[HOST:PORT ...]",
		Description: `Asks the regions of an API, or the relays that are named, and prints the mean
round trip of the answers and the share of questions without one, the nearest
first. The exit code is 1 if nothing answered. No way needs an allocation:

   udp   QoS probes, as game clients send to choose a region. A relay answers a
         source 40 at once and 20 a second; more count as lost.
   dtls  the first round trip of a handshake: a ClientHello too short for any
         answer but a cookie. The relay remembers nothing of it.
   ws, wss
         opens a WebSocket, with TCP, TLS and upgrade, which is shown as OPENING,
         and then sends pings, each after the pong to the one before.

The regions of an API tell one UDP address, for udp and dtls, and where one of their
relays takes WebSockets.

Examples:
   ferry ping relay.example.org:7777 203.0.113.7:7777
   ferry ping --api https://relay.example.org:7777 --token-file token
   ferry ping --by wss relay.example.org:7777
   ferry ping --by dtls --api http://127.0.0.1:7777 --json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "api", Usage: "`URL` of an API, whose regions are asked for"},
			&cli.StringFlag{Name: "token", Usage: "bearer `TOKEN` for the API"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the bearer token"},
			&cli.StringFlag{Name: "by", Usage: "`WAY` to ask by: udp, dtls, ws or wss", Value: wayUDP},
			&cli.IntFlag{Name: "probes", Usage: "`NUMBER` of questions to each relay, 1 to 100", Value: 5},
			&cli.DurationFlag{Name: "patience", Usage: "how long to wait for the last answer, up to 1m", Value: 500 * time.Millisecond},
			&cli.BoolFlag{Name: "json", Usage: "write one JSON object"},
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action:          s.runPing,
	}
}

func (s streams) runPing(ctx context.Context, cmd *cli.Command) error {
	token, err := benchToken(cmd)
	if err == nil {
		err = checkPing(cmd)
	}
	if err != nil {
		return usage(cmd, err)
	}
	sites, silent, err := pingSites(ctx, cmd, token)
	if err != nil {
		return err
	}
	found := append(pingAll(ctx, cmd, sites), silent...)
	print := printPings
	if cmd.Bool("json") {
		print = printPingsJSON
	}
	if err := print(s.stdout, found); err != nil {
		return err
	}
	if len(found) == 0 || found[0].Received == 0 { // The nearest is the first.
		return errNoAnswer
	}
	return nil
}

// The ways to ask.
const (
	wayUDP  = "udp"
	wayDTLS = "dtls"
	wayWS   = "ws"
	wayWSS  = "wss"
)

// overTCP reports whether a way is one by WebSocket.
func overTCP(way string) bool { return way == wayWS || way == wayWSS }

// reached is how well a site can be reached.
type reached struct {
	client.Quality
	opening time.Duration // of the connection; 0: there is none
}

// pingAll asks all sites at once, and returns the nearest first.
func pingAll(ctx context.Context, cmd *cli.Command, sites []client.Site) (all []reached) {
	way, probes, patience := cmd.String("by"), cmd.Int("probes"), cmd.Duration("patience")
	if overTCP(way) {
		return pingWebSockets(ctx, way, sites, probes, patience)
	}
	cfg := client.MeasureConfig{Probes: probes, Patience: patience}
	if way == wayDTLS {
		cfg.Probe = client.ProbeDTLS
	}
	for _, q := range client.Measure(ctx, sites, cfg) {
		all = append(all, reached{Quality: q})
	}
	return all
}

func checkPing(cmd *cli.Command) error {
	named := cmd.Args().Present()
	way := cmd.String("by")
	switch probes, patience := cmd.Int("probes"), cmd.Duration("patience"); {
	case !overTCP(way) && way != wayUDP && way != wayDTLS:
		return fmt.Errorf("--by: %q is not udp, dtls, ws or wss", way)
	case named == cmd.IsSet("api"):
		return errors.New("give either --api or relays as HOST:PORT")
	case named && (cmd.IsSet("token") || cmd.IsSet("token-file")):
		return errors.New("--token and --token-file are for --api")
	case probes < 1 || probes > maxPingProbes:
		return fmt.Errorf("--probes: %d is not within 1 to %d", probes, maxPingProbes)
	case patience <= 0 || patience > time.Minute:
		return fmt.Errorf("--patience: %v is not more than 0 and at most 1m", patience)
	}
	for _, addr := range cmd.Args().Slice() {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return fmt.Errorf("%q is not HOST:PORT", addr)
		}
	}
	return nil
}

// pingSites returns whom to probe, and the regions that cannot be.
func pingSites(ctx context.Context, cmd *cli.Command, token string) (sites []client.Site, silent []reached, err error) {
	for _, addr := range cmd.Args().Slice() {
		sites = append(sites, client.Site{Addr: addr})
	}
	if !cmd.IsSet("api") {
		return sites, nil, nil
	}
	caller := api.Client{BaseURL: cmd.String("api"), Token: token}
	regions, err := caller.Regions(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range regions {
		site := client.Site{Region: r.ID}
		if site.Addr, err = addressOf(r, cmd.String("by")); err != nil {
			silent = append(silent, reached{Quality: client.Quality{Site: site, Err: err}})
			continue
		}
		sites = append(sites, site)
	}
	return sites, silent, nil
}

// addressOf returns where to ask a region by a way.
func addressOf(r api.Region, way string) (string, error) {
	if overTCP(way) {
		return webSocketOf(r, way)
	}
	if r.QoSAddress == "" {
		return "", errNoAddress
	}
	return r.QoSAddress, nil
}

// printPings writes a table. What did not answer has no round trip.
func printPings(w io.Writer, all []reached) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REGION\tADDRESS\tOPENING\tROUND TRIP\tLOSS")
	for _, q := range all {
		open, trip, why := "-", "-", ""
		if q.opening > 0 {
			open = fmt.Sprintf("%.2f ms", milliseconds(q.opening))
		}
		if q.Received > 0 {
			trip = fmt.Sprintf("%.2f ms", milliseconds(q.RTT))
		}
		if q.Err != nil {
			why = "\t" + q.Err.Error()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%.0f%%%s\n", cmp.Or(q.Region, "-"), cmp.Or(q.Addr, "-"), open, trip, 100*q.Loss(), why)
	}
	return table.Flush()
}

// pinged is a site in JSON.
type pinged struct {
	Region   string   `json:"region,omitempty"`
	Address  string   `json:"address,omitempty"`
	Sent     int      `json:"sent"`
	Received int      `json:"received"`
	Loss     float64  `json:"loss"`
	Opening  *float64 `json:"opening_ms,omitempty"` // absent: no connection was needed, or there was none
	RTT      *float64 `json:"round_trip_ms"`        // null: no answer
	Error    string   `json:"error,omitempty"`
}

func printPingsJSON(w io.Writer, all []reached) error {
	sites := make([]pinged, len(all))
	for i, q := range all {
		sites[i] = pinged{Region: q.Region, Address: q.Addr, Sent: q.Sent, Received: q.Received, Loss: q.Loss()}
		if q.Received > 0 {
			ms := milliseconds(q.RTT)
			sites[i].RTT = &ms
		}
		if q.opening > 0 {
			ms := milliseconds(q.opening)
			sites[i].Opening = &ms
		}
		if q.Err != nil {
			sites[i].Error = q.Err.Error()
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{"sites": sites})
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
