// Package ping measures regions and relays by QoS probes, and plays small matches through a relay,
// as players do: over the Allocations API and the public address.
package ping

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

	"github.com/ferryrelay/ferry/client"
)

var (
	errUnanswered = errors.New("no relay answered")
	errUnplayed   = errors.New("not every match was played")
	errNoAddress  = errors.New("the region has no probe address")
)

// Relays measures relays at host:port and writes a table, or a JSON object. The error says that none
// answered.
func Relays(ctx context.Context, w io.Writer, addresses []string, asJSON bool) error {
	var sites []client.Site
	for _, addr := range addresses {
		sites = append(sites, client.Site{Addr: addr})
	}
	found := measure(ctx, sites)
	var err error
	if asJSON {
		err = writeJSON(w, found, nil)
	} else {
		err = writeSites(w, found)
	}
	if err != nil {
		return err
	}
	if found[0].Received == 0 { // The nearest is the first.
		return errUnanswered
	}
	return nil
}

// Once measures the regions of an API, plays a round of matches, and writes tables, or a JSON object.
// The error says that a match failed.
func Once(ctx context.Context, w io.Writer, cfg Config, asJSON bool) error {
	found, err := measureRegions(ctx, cfg)
	if err != nil {
		return err
	}
	if !asJSON {
		if err := writeSites(w, found); err != nil {
			return err
		}
		if len(found) > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, matchRow, "TRANSPORT", "CONNECTED", "ROUND TRIP", "LOSS", "RELAY")
	}
	var all []match
	failed := false
	newMatches(cfg).round(ctx, func(played match) {
		all, failed = append(all, played), failed || played.Err != nil
		if !asJSON {
			played.write(w)
		}
	})
	if asJSON {
		if err := writeJSON(w, found, all); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed {
		return errUnplayed
	}
	return nil
}

// measureRegions measures the regions of an API, or the one that is configured.
func measureRegions(ctx context.Context, cfg Config) ([]client.Quality, error) {
	regions, err := cfg.API.Regions(ctx)
	if err != nil {
		return nil, err
	}
	var sites []client.Site
	for _, r := range regions {
		if cfg.Region == "" || cfg.Region == r.ID {
			sites = append(sites, client.Site{Region: r.ID, Addr: r.QoSAddress})
		}
	}
	return measure(ctx, sites), nil
}

// measure measures all sites concurrently and returns the nearest first.
func measure(ctx context.Context, sites []client.Site) []client.Quality {
	all := client.Measure(ctx, sites, client.MeasureConfig{Timeout: lostAfter})
	for i, q := range all {
		if q.Addr == "" {
			all[i].Err = errNoAddress
		} else if q.Received == 0 && q.Err == nil {
			all[i].Err = whySilent(ctx, q.Addr)
		}
	}
	return all
}

// whySilent returns what may be the reason that a relay answers no probe of this machine, as far
// as the machine can know: a relay drops datagrams from sources that it refuses without a word.
func whySilent(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", addr) // sends nothing
	if err != nil {
		return err
	}
	defer conn.Close()
	source := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	switch {
	case source.IsLoopback():
		return fmt.Errorf("no answer to %s: no relay is there, or one with a public address, which refuses loopback: ping its public address", source)
	case source.IsLinkLocalUnicast():
		return fmt.Errorf("no answer to %s: relays refuse link-local addresses", source)
	case source.IsPrivate():
		return fmt.Errorf("no answer to %s: a relay with a public address that sees this private one, and not that of a NAT, refuses it unless allow_private_sources is set", source)
	}
	ctx, cancel := context.WithTimeout(ctx, lostAfter)
	defer cancel()
	tcp, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return errors.New("no answer over UDP or TCP: no relay is there, or a firewall is before it")
	}
	tcp.Close()
	return errors.New("its TCP port answers: UDP is blocked on the way, or reaches the relay from a private network, as through a container's proxy or a NAT that loops back, which it refuses unless allow_private_sources is set")
}

func writeSites(w io.Writer, all []client.Quality) error {
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REGION\tADDRESS\tROUND TRIP\tLOSS")
	for _, q := range all {
		why := ""
		if q.Err != nil {
			why = "\t" + q.Err.Error()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\n", cmp.Or(q.Region, "-"), cmp.Or(q.Addr, "-"), inMilliseconds(q.RTT), inPercent(q.Loss()), why)
	}
	return table.Flush()
}

const matchRow = "%-9s  %-9s  %-10s  %-4s  %s\n"

func (m match) write(w io.Writer) {
	rest := m.Addr + " in " + m.Region
	if m.Err != nil {
		rest = m.step + ": " + m.Err.Error()
	}
	fmt.Fprintf(w, matchRow, m.transport, inMilliseconds(m.linked), inMilliseconds(m.RTT), inPercent(m.Loss()), rest)
}

func inMilliseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}

func inPercent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

type siteJSON struct {
	Region   string   `json:"region,omitempty"`
	Address  string   `json:"address,omitempty"`
	Sent     int      `json:"sent"`
	Received int      `json:"received"`
	Loss     float64  `json:"loss"`
	RTT      *float64 `json:"round_trip_ms"` // null: no answer
	Error    string   `json:"error,omitempty"`
}

type matchJSON struct {
	Transport string `json:"transport"`
	siteJSON
	Connected  *float64 `json:"connected_ms"`          // null: the player was not linked to its host
	FailedStep string   `json:"failed_step,omitempty"` // absent: the match was played
}

func newSiteJSON(q client.Quality) siteJSON {
	s := siteJSON{Region: q.Region, Address: q.Addr, Sent: q.Sent, Received: q.Received, Loss: q.Loss(), RTT: orNull(q.RTT)}
	if q.Err != nil {
		s.Error = q.Err.Error()
	}
	return s
}

// orNull returns milliseconds, nil for 0.
func orNull(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	return new(float64(d) / 1e6)
}

func writeJSON(w io.Writer, found []client.Quality, played []match) error {
	out := struct {
		Sites   []siteJSON  `json:"sites"`
		Matches []matchJSON `json:"matches,omitempty"`
	}{Sites: []siteJSON{}}
	for _, q := range found {
		out.Sites = append(out.Sites, newSiteJSON(q))
	}
	for _, m := range played {
		out.Matches = append(out.Matches, matchJSON{m.transport, newSiteJSON(m.Quality), orNull(m.linked), m.step})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
