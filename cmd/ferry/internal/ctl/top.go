package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	topDrops    = 12 // reasons on the screen
	topProjects = 10
)

// look is what top has seen at one moment.
type look struct {
	stats operator.Stats
	usage operator.Usage
	took  time.Time
	// relays are those of a fleet whose sum this is, and silent those that did not answer.
	relays, silent int
}

// topPage is one screen of top.
type topPage struct {
	url             string
	last, now       look
	order           column // by which projects are sorted
	drops, projects int    // rows of each table at most
}

func (c *Client) newPage() topPage {
	return topPage{url: c.base.String(), order: byBytes, drops: topDrops, projects: topProjects}
}

// advance makes now the latest look. The first page, and the first one after a
// restart of the relay, is of the time since the relay's start.
func (p *topPage) advance(now look) {
	p.last, p.now = p.now, now
	if p.last.stats.Since != now.stats.Since {
		p.last = look{took: now.stats.Since}
		p.last.stats.Since = now.stats.Since
	}
}

// Top shows what the relay does, per second since the last look: on a terminal,
// unless Times bounds it, as a view with keys, and else page by page.
//
// In a fleet, an API process shows the sum of all relays, or the named node.
func (c *Client) Top(ctx context.Context, o Output, node string) error {
	if o.Times == 0 && terminal(o.Stdin) && terminal(o.Stdout) {
		return c.topOnTerminal(ctx, o, node)
	}
	p := c.newPage()
	s := screen{w: o.Stdout, clear: terminal(o.Stdout)}
	return s.repeat(ctx, o.Every, o.Times, func(w io.Writer) error {
		now, err := c.look(ctx, node)
		if err != nil {
			return err
		}
		p.advance(now)
		return p.draw(w)
	})
}

func (c *Client) look(ctx context.Context, node string) (l look, err error) {
	if node == "" {
		var all operator.Nodes
		if err := c.Do(ctx, Call{Path: "/nodes"}, &all); err != nil {
			return l, err
		}
		if slices.ContainsFunc(all.Nodes, func(n operator.Node) bool { return n.Role == apiRole }) {
			return c.lookAtFleet(ctx, &all)
		}
	}
	if err = c.Do(ctx, Call{Path: nodePath(node) + "/stats"}, &l.stats); err != nil {
		return l, err
	}
	l.took = l.stats.Now
	return l, c.Do(ctx, Call{Path: nodePath(node) + "/usage"}, &l.usage)
}

// apiRole is the role of a process without a relay.
const apiRole = "api"

// lookAtFleet returns the sum of the relays that answer. It fails if none does.
func (c *Client) lookAtFleet(ctx context.Context, all *operator.Nodes) (sum look, err error) {
	var failed error
	sum.stats.Drops, sum.stats.Outcomes = map[string]uint64{}, map[string]uint64{}
	for _, n := range all.Nodes {
		if n.Role == apiRole {
			continue
		}
		l, err := c.look(ctx, n.ID)
		if err != nil {
			failed = err
			sum.silent++
			continue
		}
		sum.relays++
		sum.add(&l)
	}
	switch {
	case sum.relays > 0:
	case failed == nil && all.AwayText(clock) != "":
		return sum, fmt.Errorf("the relays are not known: %s", all.AwayText(clock))
	default:
		return sum, cmp.Or(failed, errNoRelays)
	}
	return sum, nil
}

var errNoRelays = errors.New("this API process knows of no relay")

// add adds the counts of a relay. The sum is of the time since the start of the oldest one.
func (l *look) add(o *look) {
	s, t := &l.stats, &o.stats
	if s.Since.IsZero() || t.Since.Before(s.Since) {
		s.Since = t.Since
	}
	s.Now, l.took = t.Now, o.took
	for to, from := range map[*int]int{
		&s.Allocations: t.Allocations, &s.Bound: t.Bound, &s.Links: t.Links, &s.Seats: t.Seats, &s.UnderLoad: t.UnderLoad,
	} {
		*to += from
	}
	for to, from := range map[*uint64]uint64{
		&s.Received: t.Received, &s.ReceivedBytes: t.ReceivedBytes, &s.Sent: t.Sent, &s.SentBytes: t.SentBytes,
		&s.SendFailed: t.SendFailed, &s.KernelDrops: t.KernelDrops,
	} {
		*to += from
	}
	s.Workers, s.Intakes = append(s.Workers, t.Workers...), append(s.Intakes, t.Intakes...)
	for to, from := range map[*map[string]uint64]map[string]uint64{&s.Drops: t.Drops, &s.Outcomes: t.Outcomes} {
		for name, n := range from {
			(*to)[name] += n
		}
	}
	l.usage.Add(&o.usage)
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

func (p *topPage) draw(w io.Writer) error {
	w = printable.NewWriter(w)
	r, a, b := rates{p.now.took.Sub(p.last.took).Seconds()}, &p.last.stats, &p.now.stats
	state := ""
	if b.Draining {
		state = "  DRAINING"
	}
	if p.now.relays > 0 {
		state = fmt.Sprintf("  sum of %d relays", p.now.relays)
	}
	if p.now.silent > 0 {
		state += fmt.Sprintf(", %d DO NOT ANSWER", p.now.silent)
	}
	fmt.Fprintf(w, "ferry %s  up %s  %s%s\n", p.url, age(b.Now.Sub(b.Since).Seconds()), b.Now.Local().Format("15:04:05"), state)
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
	if err := p.drawDrops(w, r); err != nil {
		return err
	}
	return p.drawProjects(w, r)
}

func (r rates) done(a, b *operator.Stats, name string) string {
	return r.count(a.Outcomes[name], b.Outcomes[name])
}

func (p *topPage) drawDrops(w io.Writer, r rates) error {
	a, b := p.last.stats.Drops, p.now.stats.Drops
	names := rank(b)
	if len(names) == 0 {
		_, err := fmt.Fprintln(w, "\nno datagram was dropped")
		return err
	}
	fmt.Fprintln(w)
	var rows []string
	for _, name := range names[:min(len(names), p.drops)] {
		rows = append(rows, row(name, r.count(a[name], b[name]), group(b[name])))
	}
	return table(w, "DROPPED\tRATE\tIN ALL", rows)
}

// column is a column of the table of projects.
type column int

const (
	byProject column = iota
	byHosts
	byPlayers
	byRelayed
	byBytes
)

var projectHeads = []string{"PROJECT", "HOSTS", "PLAYERS", "RELAYED", "BYTES"}

func (p *topPage) drawProjects(w io.Writer, r rates) error {
	if len(p.now.usage.Projects) == 0 {
		return nil
	}
	before := map[string]operator.ProjectUsage{}
	for _, u := range p.last.usage.Projects {
		before[u.Tenant] = u
	}
	var rows []string
	all := p.sorted(r, before)
	for _, u := range all[:min(len(all), p.projects)] {
		was := before[u.Tenant]
		rows = append(rows, row(projectName(&u), group(uint64(u.Hosts)), group(uint64(u.Players)),
			r.count(was.Datagrams, u.Datagrams), r.bytes(was.Bytes, u.Bytes)))
	}
	fmt.Fprintln(w)
	return table(w, strings.Join(projectHeads, "\t"), rows)
}

// sorted returns the projects in the page's order: numbers from the largest,
// names from A.
func (p *topPage) sorted(r rates, before map[string]operator.ProjectUsage) []operator.ProjectUsage {
	number := func(u *operator.ProjectUsage) uint64 {
		was := before[u.Tenant]
		switch p.order {
		case byHosts:
			return uint64(u.Hosts)
		case byPlayers:
			return uint64(u.Players)
		case byRelayed:
			return uint64(r.of(was.Datagrams, u.Datagrams))
		case byBytes:
			return uint64(r.of(was.Bytes, u.Bytes))
		}
		return 0
	}
	all := slices.Clone(p.now.usage.Projects)
	slices.SortFunc(all, func(a, b operator.ProjectUsage) int {
		names := 0
		if p.order == byProject {
			names = cmp.Compare(projectName(&a), projectName(&b))
		}
		return cmp.Or(cmp.Compare(number(&b), number(&a)), names, cmp.Compare(a.Tenant, b.Tenant))
	})
	return all
}
