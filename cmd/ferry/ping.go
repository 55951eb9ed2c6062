package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/coder/websocket"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/urfave/cli/v3"
)

var (
	errNoAnswer  = errors.New("nothing answered")
	errNoAddress = errors.New("the region has no probe address")
)

// maxPingProbes is what client.Measure sends at most.
const maxPingProbes = 100

func pingCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:      "ping",
		Usage:     "measure round trip and loss to regions or relays",
		ArgsUsage: "[HOST:PORT ...]",
		Description: `Probes the regions of an API, or the given relays, and prints the mean
round trip of the answers and the share of lost probes, the nearest
first. The exit code is 1 if nothing answered. No probe needs an allocation:

   udp   QoS probes, as game clients send to choose a region. A relay answers a
         source 40 at once and 20 a second; more count as lost.
   dtls  the first round trip of a handshake: a ClientHello too short for any
         answer but a cookie. The relay keeps no state for it.
   ws, wss
         opens a WebSocket, with TCP, TLS and upgrade, shown as OPENING, and
         then sends pings, each after the previous pong.

A region of an API has one UDP address, for udp and dtls, and one WebSocket URL.

Examples:
   ferry ping relay.example.org:7777 203.0.113.7:7777
   ferry ping --api https://relay.example.org:7777 --token-file token
   ferry ping --transport wss relay.example.org:7777
   ferry ping --transport dtls --api http://127.0.0.1:7777 --json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "api", Usage: "probe the regions of the API at `URL`"},
			&cli.StringFlag{Name: "token", Usage: "bearer `TOKEN` for the API"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the bearer token"},
			caFlag(""),
			&cli.StringFlag{Name: "transport", Usage: "probe over `TRANSPORT`: udp, dtls, ws or wss", Value: transportUDP},
			&cli.IntFlag{Name: "probes", Usage: "`NUMBER` of probes to each relay, 1 to 100", Value: 5},
			&cli.DurationFlag{Name: "patience", Usage: "timeout of the last probe, up to 1m", Value: 500 * time.Millisecond},
			&cli.BoolFlag{Name: "json", Usage: "write one JSON object"},
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action:          s.runPing,
	}
}

func (s streams) runPing(ctx context.Context, cmd *cli.Command) error {
	caller, err := apiClient(cmd)
	if err == nil {
		err = checkPing(cmd)
	}
	if err != nil {
		return usage(cmd, err)
	}
	sites, silent, err := pingSites(ctx, cmd, &caller)
	if err != nil {
		return err
	}
	secure, err := trust(cmd)
	if err != nil {
		return usage(cmd, err)
	}
	found := append(pingAll(ctx, cmd, sites, secure), silent...)
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

// The transports of probes.
const (
	transportUDP  = "udp"
	transportDTLS = "dtls"
	transportWS   = "ws"
	transportWSS  = "wss"
)

// isWebSocket reports whether a transport is WebSocket.
func isWebSocket(transport string) bool { return transport == transportWS || transport == transportWSS }

// pingResult is the result of one site.
type pingResult struct {
	client.Quality
	opening time.Duration // time to open the connection; 0: no connection
}

// pingAll probes all sites concurrently and returns the nearest first.
func pingAll(ctx context.Context, cmd *cli.Command, sites []client.Site, secure *tls.Config) (all []pingResult) {
	transport, probes, patience := cmd.String("transport"), cmd.Int("probes"), cmd.Duration("patience")
	if isWebSocket(transport) {
		o := &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: secure}}}
		return pingWebSockets(ctx, transport, sites, probes, patience, o)
	}
	cfg := client.MeasureConfig{Probes: probes, Timeout: patience}
	if transport == transportDTLS {
		cfg.Probe = client.ProbeDTLS
	}
	for _, q := range client.Measure(ctx, sites, cfg) {
		if q.Received == 0 && q.Err == nil {
			q.Err = whySilent(ctx, q.Addr, patience)
		}
		all = append(all, pingResult{Quality: q})
	}
	return all
}

// whySilent returns what may be the reason that a relay answers no probe of this machine, as far
// as the machine can know: a relay drops datagrams from sources that it refuses without a word.
func whySilent(ctx context.Context, addr string, patience time.Duration) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", addr) // sends nothing
	if err != nil {
		return err
	}
	defer conn.Close()
	source := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	switch {
	case source.IsLoopback():
		return fmt.Errorf("no answer to %s: a relay with a public address refuses loopback; ping its public address", source)
	case source.IsLinkLocalUnicast():
		return fmt.Errorf("no answer to %s: relays refuse link-local addresses", source)
	case source.IsPrivate():
		return fmt.Errorf("no answer to %s: a relay with a public address that sees this private one, and not that of a NAT, refuses it unless allow_private_sources is set", source)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tcp, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	tcp.Close()
	return errors.New("its TCP port answers: UDP is blocked on the way, or reaches the relay from a private network, as through a container's proxy or a NAT that loops back, which it refuses unless allow_private_sources is set")
}

func checkPing(cmd *cli.Command) error {
	named := cmd.Args().Present()
	transport := cmd.String("transport")
	switch probes, patience := cmd.Int("probes"), cmd.Duration("patience"); {
	case !isWebSocket(transport) && transport != transportUDP && transport != transportDTLS:
		return fmt.Errorf("--transport: %q is not udp, dtls, ws or wss", transport)
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

// pingSites returns the sites to probe, and the regions without an address.
func pingSites(ctx context.Context, cmd *cli.Command, caller *api.Client) (sites []client.Site, silent []pingResult, err error) {
	for _, addr := range cmd.Args().Slice() {
		sites = append(sites, client.Site{Addr: addr})
	}
	if !cmd.IsSet("api") {
		return sites, nil, nil
	}
	regions, err := caller.Regions(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range regions {
		site := client.Site{Region: r.ID}
		if site.Addr, err = probeAddress(r, cmd.String("transport")); err != nil {
			silent = append(silent, pingResult{Quality: client.Quality{Site: site, Err: err}})
			continue
		}
		sites = append(sites, site)
	}
	return sites, silent, nil
}

// probeAddress returns the address of a region for a transport.
func probeAddress(r api.Region, transport string) (string, error) {
	if isWebSocket(transport) {
		return webSocketAddress(r, transport)
	}
	if r.QoSAddress == "" {
		return "", errNoAddress
	}
	return r.QoSAddress, nil
}

// printPings writes a table. Sites without an answer have no round trip.
func printPings(w io.Writer, all []pingResult) error {
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

// pingJSON is a site in JSON.
type pingJSON struct {
	Region   string   `json:"region,omitempty"`
	Address  string   `json:"address,omitempty"`
	Sent     int      `json:"sent"`
	Received int      `json:"received"`
	Loss     float64  `json:"loss"`
	Opening  *float64 `json:"opening_ms,omitempty"` // absent: no connection
	RTT      *float64 `json:"round_trip_ms"`        // null: no answer
	Error    string   `json:"error,omitempty"`
}

func printPingsJSON(w io.Writer, all []pingResult) error {
	sites := make([]pingJSON, len(all))
	for i, q := range all {
		sites[i] = pingJSON{Region: q.Region, Address: q.Addr, Sent: q.Sent, Received: q.Received, Loss: q.Loss()}
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

// openingTrips is the timeout of opening a WebSocket, in multiples of --patience. It
// takes a round trip for the name, one for TCP, two for TLS and one for the upgrade.
const openingTrips = 5

var errNoWebSocket = errors.New("the region has no WebSocket URL")

// pingWebSockets probes all sites concurrently and returns the nearest first.
func pingWebSockets(ctx context.Context, scheme string, sites []client.Site, probes int, patience time.Duration,
	o *websocket.DialOptions) []pingResult {
	found := make([]pingResult, len(sites))
	var wg sync.WaitGroup
	for i, site := range sites {
		wg.Go(func() { found[i] = pingWebSocket(ctx, scheme, site, probes, patience, o) })
	}
	wg.Wait()
	qualities, openings := make([]client.Quality, len(found)), make(map[client.Site]time.Duration)
	for i, r := range found {
		qualities[i], openings[r.Site] = r.Quality, r.opening
	}
	client.SortByDistance(qualities)
	for i, q := range qualities {
		found[i] = pingResult{q, openings[q.Site]}
	}
	return found
}

// pingWebSocket opens one WebSocket and sends pings, each after the answer or
// the timeout of the previous one.
func pingWebSocket(ctx context.Context, scheme string, site client.Site, probes int, patience time.Duration,
	o *websocket.DialOptions) pingResult {
	r := pingResult{Quality: client.Quality{Site: site}}
	opening, cancel := context.WithTimeout(ctx, openingTrips*patience)
	defer cancel()
	start := time.Now()
	conn, _, err := websocket.Dial(opening, scheme+"://"+site.Addr+"/", o)
	if err != nil {
		r.Err = fmt.Errorf("opening: %w", err)
		return r
	}
	r.opening = time.Since(start)
	defer conn.CloseNow()
	reading := conn.CloseRead(ctx) // reads pongs
	var sum time.Duration
	for range probes {
		if reading.Err() != nil {
			r.Err = errors.New("the relay has ended the connection")
			break
		}
		trip, err := pingOnce(reading, conn, patience)
		r.Sent++
		if err == nil {
			r.Received++
			sum += trip
		}
	}
	if r.Received > 0 {
		r.RTT = sum / time.Duration(r.Received)
	}
	return r
}

func pingOnce(ctx context.Context, conn *websocket.Conn, patience time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := conn.Ping(ctx)
	return time.Since(start), err
}

// webSocketAddress returns the WebSocket address of a region for a scheme.
func webSocketAddress(r api.Region, scheme string) (addr string, err error) {
	u, err := url.Parse(r.WebSocketURL)
	switch {
	case err != nil:
		return "", err
	case r.WebSocketURL == "":
		return "", errNoWebSocket
	case u.Scheme != scheme:
		return "", fmt.Errorf("the region takes %s", r.WebSocketURL)
	}
	return u.Host, nil
}
