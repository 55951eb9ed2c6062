package ctl

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/internal/admin"
)

const (
	topDrops    = 12 // reasons on the screen
	topProjects = 10
)

// look is what top has seen at one moment.
type look struct {
	stats admin.Stats
	usage admin.Usage
	took  time.Time
}

// Top shows what the relay does, per second since the last look. The first
// screen is of the time since the start.
func (c *Client) Top(ctx context.Context, o Output) error {
	s := screen{w: o.Stdout, clear: terminal(o.Stdout)}
	var last look
	return s.repeat(ctx, o.Every, o.Times, func(w io.Writer) error {
		now, err := c.look(ctx)
		if err != nil {
			return err
		}
		if last.stats.Since != now.stats.Since { // It was started anew.
			last = look{took: now.stats.Since}
			last.stats.Since = now.stats.Since
		}
		err = draw(w, c.base.String(), &last, &now)
		last = now
		return err
	})
}

func (c *Client) look(ctx context.Context) (l look, err error) {
	if err = c.Ask(ctx, Call{Method: http.MethodGet, Path: "/stats"}, &l.stats); err != nil {
		return l, err
	}
	l.took = l.stats.Now
	return l, c.Ask(ctx, Call{Method: http.MethodGet, Path: "/usage"}, &l.usage)
}

// rates turns counts into numbers per second.
type rates struct{ seconds float64 }

func (r rates) of(before, now uint64) float64 {
	if r.seconds <= 0 || now < before {
		return 0
	}
	return float64(now-before) / r.seconds
}

func (r rates) count(before, now uint64) string { return group(uint64(r.of(before, now)+0.5)) + "/s" }
func (r rates) bytes(before, now uint64) string { return size(uint64(r.of(before, now)+0.5)) + "/s" }

func draw(w io.Writer, url string, last, now *look) error {
	r, a, b := rates{now.took.Sub(last.took).Seconds()}, &last.stats, &now.stats
	state := ""
	if b.Draining {
		state = "  DRAINING"
	}
	fmt.Fprintf(w, "ferry %s  up %s  %s%s\n", url, age(b.Now.Sub(b.Since).Seconds()), b.Now.Local().Format("15:04:05"), state)
	fmt.Fprintf(w, "rates of the last %s\n\n", age(r.seconds))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "allocations\t%s\tbound\t%s\tlinks\t%s\tseats\t%s\n",
		group(uint64(b.Allocations)), group(uint64(b.Bound)), group(uint64(b.Links)), group(uint64(b.Seats)))
	fmt.Fprintf(t, "in\t%s\t\t%s\tout\t%s\t\t%s\n", r.count(a.Received, b.Received), r.bytes(a.ReceivedBytes, b.ReceivedBytes),
		r.count(a.Sent, b.Sent), r.bytes(a.SentBytes, b.SentBytes))
	fmt.Fprintf(t, "relayed\t%s\tBINDs\t%s\tconnects\t%s\tpings\t%s\n", r.done(a, b, "relayed"), r.done(a, b, "bound"),
		r.done(a, b, "accepted"), r.done(a, b, "pong"))
	fmt.Fprintf(t, "kernel drops\t%s\tnot sent\t%s\tworkers\t%d\tunder load\t%d\n", r.count(a.KernelDrops, b.KernelDrops),
		r.count(a.SendFailed, b.SendFailed), len(b.Workers), b.UnderLoad)
	if err := t.Flush(); err != nil {
		return err
	}
	if err := drawDrops(w, r, a, b); err != nil {
		return err
	}
	return drawProjects(w, r, last, now)
}

func (r rates) done(a, b *admin.Stats, name string) string {
	return r.count(a.Outcomes[name], b.Outcomes[name])
}

func drawDrops(w io.Writer, r rates, a, b *admin.Stats) error {
	names := rank(b.Drops)
	if len(names) == 0 {
		_, err := fmt.Fprintln(w, "\nno datagram was dropped")
		return err
	}
	fmt.Fprintln(w)
	var rows []string
	for _, name := range names[:min(len(names), topDrops)] {
		rows = append(rows, row(name, r.count(a.Drops[name], b.Drops[name]), group(b.Drops[name])))
	}
	return table(w, "DROPPED\tRATE\tIN ALL", rows)
}

func drawProjects(w io.Writer, r rates, last, now *look) error {
	before, bytes, index := map[string]admin.ProjectUsage{}, map[string]uint64{}, map[string]admin.ProjectUsage{}
	for _, p := range last.usage.Projects {
		before[p.Tenant] = p
	}
	for _, p := range now.usage.Projects {
		index[p.Tenant] = p
		bytes[p.Tenant] = 1 + uint64(r.of(before[p.Tenant].Bytes, p.Bytes)) // Those at rest are listed, too.
	}
	names := rank(bytes)
	if len(names) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	var rows []string
	for _, name := range names[:min(len(names), topProjects)] {
		p, was := index[name], before[name]
		shown := project(p.Project, p.Environment, p.Tenant)
		if p.Others {
			shown = "(all others)"
		}
		rows = append(rows, row(shown, group(uint64(p.Hosts)), group(uint64(p.Players)),
			r.count(was.Datagrams, p.Datagrams), r.bytes(was.Bytes, p.Bytes)))
	}
	return table(w, strings.Join([]string{"PROJECT", "HOSTS", "PLAYERS", "RELAYED", "BYTES"}, "\t"), rows)
}
