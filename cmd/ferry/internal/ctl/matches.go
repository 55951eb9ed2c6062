package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Allocations shows those of a node that a query selects, at most so many; 0: all.
func Allocations(node string, q operator.AllocationsQuery) Request {
	return pages(operator.ListAllocations, node, q)
}

// Players shows those of a host, which is at a node; empty: an API process finds it.
func Players(node string, q operator.AllocationsQuery) Request {
	return pages(operator.ListPlayers, node, q)
}

func pages(l *operator.List[operator.AllocationsQuery, operator.Allocations], node string, q operator.AllocationsQuery) Request {
	most := q.Limit
	page := func(read int, cursor uint32) Call {
		q.Cursor, q.Limit = cursor, operator.MaxRows
		if most > 0 {
			q.Limit = min(most-read, operator.MaxRows)
		}
		return Call{Path: nodePath(node) + l.PathOf(q), Query: operator.Values(q)}
	}
	r := requestOf(page(0, 0), func(o Output, all *operator.Allocations) error {
		if err := allocationsTable(o.Stdout, all); err != nil || all.Next == 0 {
			return err
		}
		_, err := fmt.Fprintf(o.Stderr, "these are the first %d; --limit 0 shows all\n", len(all.Allocations))
		return err
	})
	r.ask = func(ctx context.Context, c *Client) (any, error) {
		all := &operator.Allocations{Allocations: []operator.Allocation{}}
		for {
			var next operator.Allocations
			if err := c.Do(ctx, page(len(all.Allocations), all.Next), &next); err != nil {
				return nil, err
			}
			all.Allocations, all.Next = append(all.Allocations, next.Allocations...), next.Next
			if all.Next == 0 || most > 0 && len(all.Allocations) >= most {
				return all, nil
			}
		}
	}
	return r
}

// Kick removes a player from its match.
func Kick(id string) Request {
	return tableOf(Call{Method: http.MethodPost, Path: "/allocations/" + url.PathEscape(id) + "/kick"}, doneLine)
}

// End ends an allocation.
func End(id string) Request {
	return tableOf(Call{Method: http.MethodDelete, Path: "/allocations/" + url.PathEscape(id)}, doneLine)
}

func doneLine(w io.Writer, d *operator.ActionResult) error {
	_, err := fmt.Fprintln(w, d.ID, d.Done)
	return err
}

// Why explains what happened to an allocation, live or ended, by its id or join code. An
// API process asks all relays, or only the named node.
func Why(node, name string) Request {
	return listing(operator.ListWhy, node, operator.NameQuery{Name: name}, rows(whyTable))
}

// Timeline shows what happened to the allocations of a project lately, and which of its calls
// were refused. An API process asks all relays, or only the named node.
func Timeline(node string, q operator.TimelineQuery) Request {
	return listing(operator.ListTimeline, node, q, func(o Output, p *operator.ProjectTimeline) error {
		err := timelineTable(o.Stdout, p)
		missingLines(o.Stderr, "the timeline", p.Missing)
		return err
	})
}

// Capture writes the messages of a match, by the id of an allocation or a join code, to a
// pcapng file; "-" is the standard output. It removes a file that it could not complete.
func (c *Client) Capture(ctx context.Context, o Output, node, name, file string, seconds int) error {
	call := Call{
		Method: http.MethodPost, Path: nodePath(node) + "/allocations/" + url.PathEscape(name) + "/capture",
		Query: url.Values{"seconds": {strconv.Itoa(seconds)}}, Within: time.Duration(seconds)*time.Second + callWithin,
	}
	if o.Curl {
		_, err := fmt.Fprintln(o.Stdout, c.Curl(call), "-o", quote(file))
		return err
	}
	return c.receive(ctx, call, func(body io.Reader) error {
		if file == "-" {
			_, err := io.Copy(o.Stdout, body)
			return err
		}
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(out, body)
		if err = errors.Join(err, out.Close()); err != nil {
			os.Remove(file)
			return err
		}
		_, err = fmt.Fprintf(o.Stderr, "%s: %d bytes\n", file, n)
		return err
	})
}

func allocationsTable(w io.Writer, all *operator.Allocations) error {
	var rows []string
	for _, a := range all.Allocations {
		links := strconv.Itoa(a.Connections)
		if a.Role == "host" {
			links += " of " + strconv.Itoa(a.MaxConnections)
		}
		match := a.Match
		if a.Role == "host" {
			match = ""
		}
		rows = append(rows, row(a.ID, a.Role, match, a.JoinCode, a.Player, project(a.Project, a.Environment, a.Tenant), a.Transport, a.Endpoint,
			links, age(a.Age), age(a.Heard), group(a.SentDatagrams), group(a.SentBytes), group(uint64(a.ReceiverSizeDrops)),
			group(uint64(a.LargeMessages))))
	}
	return table(w, "ID\tROLE\tHOST\tCODE\tPLAYER\tPROJECT\tTRANSPORT\tENDPOINT\tLINKS\tAGE\tHEARD\tSENT\tBYTES\tTOO-LARGE\tMAYBE-TOO-LARGE", rows)
}

func whyTable(w io.Writer, y *operator.Why) error {
	name := printable.Line(y.ID)
	if y.Role != "" {
		name = printable.Line(y.Role) + " " + name
	}
	if y.JoinCode != "" {
		name += ", join code " + printable.Line(y.JoinCode)
	}
	if y.Player != "" {
		name += ", player " + printable.Line(y.Player)
	}
	fmt.Fprintf(w, "%s:\n  %s\n", name, printable.Line(y.Because))
	for _, p := range y.Players {
		fmt.Fprintf(w, "player %s:\n  %s\n", printable.Line(strings.TrimSpace(p.ID+" "+p.Player)), printable.Line(p.Because))
	}
	var rows []string
	for _, e := range y.Events {
		rows = append(rows, row(eventCells(&e)...))
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return table(w, "TIME\tEVENT\tWITH\tCOUNT\tREASON", rows)
}

// eventCells are the time of an event, what it was, with whom, how often and why.
func eventCells(e *operator.WhyEvent) []string {
	count := ""
	if e.Count > 1 {
		count = fmt.Sprintf("%d times since %s", e.Count, e.First.Local().Format(time.TimeOnly))
	}
	return []string{e.Last.Local().Format(time.TimeOnly), e.What, cmp.Or(e.Peer, e.Endpoint), count, e.Reason}
}

func timelineTable(w io.Writer, p *operator.ProjectTimeline) error {
	if len(p.Events) == 0 {
		_, err := fmt.Fprintf(w, "no events of project %s are kept\n", printable.Line(p.Project))
		return err
	}
	var rows []string
	for _, e := range slices.Backward(p.Events) {
		rows = append(rows, row(slices.Insert(eventCells(&e), 1, e.ID)...))
	}
	return table(w, "TIME\tALLOCATION\tEVENT\tWITH\tCOUNT\tREASON", rows)
}
