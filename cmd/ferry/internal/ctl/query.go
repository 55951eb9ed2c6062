package ctl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
)

// Output says how answers are shown.
type Output struct {
	Stdout, Stderr io.Writer
	// Stdin are the keys of a view on a terminal. Nil: there is no such view.
	Stdin io.Reader
	JSON  bool
	CSV   bool // of Usage
	// Curl shows the call, and makes none.
	Curl bool
	// Watch shows the answer again after each Every, on a cleared screen where
	// there is one, Times times; 0: until the context ends.
	Watch bool
	Every time.Duration
	Times int
}

// question is a call and how its answer looks.
type question struct {
	call Call
	ask  func(context.Context, *Client) (any, error) // nil: the call itself
	into func() any
	show func(io.Writer, any) error
}

// of makes a question whose answer is a T.
func of[T any](call Call, show func(io.Writer, *T) error) question {
	return question{
		call: call, into: func() any { return new(T) },
		show: func(w io.Writer, v any) error { return show(w, v.(*T)) },
	}
}

// run asks and shows, once or again and again.
func (c *Client) run(ctx context.Context, o Output, q question) error {
	if o.Curl {
		_, err := fmt.Fprintln(o.Stdout, c.Curl(q.call))
		return err
	}
	if !o.Watch {
		return c.once(ctx, o, q)
	}
	s := screen{w: o.Stdout, clear: terminal(o.Stdout)}
	return s.repeat(ctx, o.Every, o.Times, func(w io.Writer) error {
		o.Stdout = w
		return c.once(ctx, o, q)
	})
}

func (c *Client) once(ctx context.Context, o Output, q question) (err error) {
	answer := q.into()
	if q.ask != nil {
		answer, err = q.ask(ctx, c)
	} else {
		err = c.Do(ctx, q.call, answer)
	}
	if err != nil {
		return err
	}
	out := TextWriter(o.Stdout)
	if !o.JSON {
		return q.show(out, answer)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(answer)
}

// Nodes shows this process, or all of a fleet.
func (c *Client) Nodes(ctx context.Context, o Output) error {
	return c.run(ctx, o, of(Call{Method: http.MethodGet, Path: "/nodes"}, nodesTable))
}

// Filter says which allocations are shown. Empty fields let all through.
type Filter struct {
	Project, Environment, Tenant, Role, Match, Bound, Transport string
	// Limit is how many are shown at most; 0: all.
	Limit int
	// Node is the relay that has them; empty: the process that is asked.
	Node string
}

func (f Filter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"project": f.Project, "environment": f.Environment, "tenant": f.Tenant,
		"role": f.Role, "match": f.Match, "bound": f.Bound, "transport": f.Transport,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// Allocations shows those that a filter lets through.
func (c *Client) Allocations(ctx context.Context, o Output, f Filter) error {
	return c.list(ctx, o, nodePath(f.Node)+"/allocations", f)
}

// Players shows those of a host, which is at a node; empty: an API process finds it.
func (c *Client) Players(ctx context.Context, o Output, node, host string, limit int) error {
	return c.list(ctx, o, nodePath(node)+"/allocations/"+url.PathEscape(host)+"/players", Filter{Limit: limit})
}

// list goes through a listing page by page.
func (c *Client) list(ctx context.Context, o Output, path string, f Filter) error {
	first := page(path, f, 0, f.Limit)
	q := of(first, allocationsTable)
	q.ask = func(ctx context.Context, c *Client) (any, error) {
		all := &operator.Allocations{Allocations: []operator.Allocation{}}
		for {
			var next operator.Allocations
			left := 0
			if f.Limit > 0 {
				left = f.Limit - len(all.Allocations)
			}
			if err := c.Do(ctx, page(path, f, all.Next, left), &next); err != nil {
				return nil, err
			}
			all.Allocations, all.Next = append(all.Allocations, next.Allocations...), next.Next
			if all.Next == 0 || f.Limit > 0 && len(all.Allocations) >= f.Limit {
				return all, nil
			}
		}
	}
	q.show = func(w io.Writer, v any) error {
		all := v.(*operator.Allocations)
		if err := allocationsTable(w, all); err != nil || all.Next == 0 {
			return err
		}
		_, err := fmt.Fprintf(o.Stderr, "these are the first %d; --limit 0 shows all\n", len(all.Allocations))
		return err
	}
	return c.run(ctx, o, q)
}

// page is the call for the page from cursor on, with left allocations at most;
// 0: as many as fit.
func page(path string, f Filter, cursor uint32, left int) Call {
	q := f.query()
	if left <= 0 || left > admin.MaxPage {
		left = admin.MaxPage
	}
	q.Set("limit", strconv.Itoa(left))
	if cursor != 0 {
		q.Set("cursor", strconv.FormatUint(uint64(cursor), 10))
	}
	return Call{Method: http.MethodGet, Path: path, Query: q}
}

// Kick removes a player from its match, and End ends an allocation.
func (c *Client) Kick(ctx context.Context, o Output, id string) error {
	return c.run(ctx, o, of(Call{Method: http.MethodPost, Path: "/allocations/" + url.PathEscape(id) + "/kick"}, doneLine))
}

// Why explains what happened to an allocation, live or ended, by its id or join code. An
// API process asks all relays, or only the named node.
func (c *Client) Why(ctx context.Context, o Output, node, name string) error {
	return c.run(ctx, o, of(Call{Method: http.MethodGet, Path: nodePath(node) + "/why/" + url.PathEscape(name)}, whyTable))
}

// Timeline shows what happened to the allocations of a project lately, and which of its calls
// were refused: at most so many events. An API process asks all relays, or only the named node.
func (c *Client) Timeline(ctx context.Context, o Output, node, project string, limit int) error {
	return c.run(ctx, o, of(Call{
		Method: http.MethodGet, Path: nodePath(node) + "/timeline",
		Query: url.Values{"project": {project}, "limit": {strconv.Itoa(limit)}},
	}, func(w io.Writer, p *operator.ProjectTimeline) error {
		err := timelineTable(w, p)
		missingLines(o.Stderr, "the timeline", p.Missing)
		return err
	}))
}

// Reach asks whether a server is reached from there: network is udp or tcp, address HOST:PORT.
func (c *Client) Reach(ctx context.Context, network, address string) (r admin.Reached, err error) {
	err = c.Do(ctx, Call{Method: http.MethodPost, Path: "/reach", Query: url.Values{"by": {network}, "address": {address}}}, &r)
	return r, err
}

// Capture writes the messages of a match, by the id of an allocation or a join code, to a
// pcapng file; "-" is the standard output. It removes a file that it could not complete.
func (c *Client) Capture(ctx context.Context, o Output, node, name, file string, seconds int) error {
	call := Call{
		Method: http.MethodPost, Path: nodePath(node) + "/allocations/" + url.PathEscape(name) + "/capture",
		Query: url.Values{"seconds": {strconv.Itoa(seconds)}},
	}
	if o.Curl {
		_, err := fmt.Fprintln(o.Stdout, c.Curl(call), "-o", quote(file))
		return err
	}
	return c.receive(ctx, call, time.Duration(seconds)*time.Second+callWithin, func(body io.Reader) error {
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

// Bans shows the bans.
func (c *Client) Bans(ctx context.Context, o Output) error {
	return c.run(ctx, o, of(Call{Method: http.MethodGet, Path: "/bans"}, bansTable))
}

// Ban adds the ban that the query describes. Of a wide prefix it counts first whom the ban removes,
// and asks on the terminal, unless confirmed is set.
func (c *Client) Ban(ctx context.Context, o Output, query url.Values, confirmed bool) error {
	if prefix, ok := admin.ParsePrefix(query.Get("prefix")); ok && ban.IsWide(prefix) && !o.Curl {
		if _, err := fmt.Fprintln(TextWriter(o.Stderr), affected(ctx, c, ban.Network(prefix))); err != nil {
			return err
		}
		if !confirmed && !terminal(o.Stdin) {
			return fmt.Errorf("%v is a wide network: give --yes to ban it without a question on a terminal", ban.Network(prefix))
		}
		if !confirmed && !isYes(o.Stdin, o.Stderr, fmt.Sprintf("Ban %v?", ban.Network(prefix))) {
			return errors.New("nothing was banned")
		}
	}
	return c.run(ctx, o, of(Call{Method: http.MethodPost, Path: "/bans", Query: query}, func(w io.Writer, b *ban.Ban) error {
		_, err := fmt.Fprintf(w, "%s banned until %s (%s)\n", printable(b.Subject()), b.Until.Local().Format(time.DateTime), b.ID)
		return err
	}))
}

// affected says what a ban of a prefix ends now.
func affected(ctx context.Context, c *Client, prefix netip.Prefix) string {
	var n operator.Affected
	err := c.Do(ctx, Call{Method: http.MethodGet, Path: "/bans/affected", Query: url.Values{"prefix": {prefix.String()}}}, &n)
	if err != nil {
		return fmt.Sprintf("how many players of %v are here now is not known: %v", prefix, err)
	}
	text := fmt.Sprintf("the ban of %v would remove now: hosts %d (each with its match), joiners %d, WebSocket connections %d", prefix,
		n.Hosts, n.Joiners, n.WebSockets)
	if n.MissingRelays > 0 {
		text += fmt.Sprintf("; relays that are not in the sum: %d", n.MissingRelays)
	}
	return text
}

// isYes asks a question, and reports whether the answer is y or yes.
func isYes(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question, " [y/N] ")
	line, _ := bufio.NewReader(in).ReadString('\n') // No line is a no.
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// Unban removes a ban by its id; or by its prefix, with those of networks inside it; or, if name is
// empty, that of the player in the query.
func (c *Client) Unban(ctx context.Context, o Output, name string, query url.Values) error {
	call := Call{Method: http.MethodDelete, Path: "/bans", Query: query}
	if _, ok := admin.ParsePrefix(name); ok {
		call.Query = url.Values{"prefix": {name}}
	} else if name != "" {
		call.Path += "/" + url.PathEscape(name)
	}
	return c.run(ctx, o, of(call, removedBansTable))
}

// End ends an allocation.
func (c *Client) End(ctx context.Context, o Output, id string) error {
	return c.run(ctx, o, of(Call{Method: http.MethodDelete, Path: "/allocations/" + url.PathEscape(id)}, doneLine))
}

func doneLine(w io.Writer, d *operator.ActionResult) error {
	_, err := fmt.Fprintln(w, d.ID, d.Done)
	return err
}

// Usage shows what each project used of a node; empty: of the process that is asked, or of
// all relays if that is an API process. Relays whose part is missing are named on Stderr.
func (c *Client) Usage(ctx context.Context, o Output, node string) error {
	show := usageTable
	if o.CSV {
		show = usageCSV
	}
	return c.run(ctx, o, of(Call{Method: http.MethodGet, Path: nodePath(node) + "/usage"}, func(w io.Writer, u *operator.Usage) error {
		err := show(w, u)
		missingLines(o.Stderr, "the usage", u.Missing)
		return err
	}))
}

// PlayerUsage shows what players used of a node, as Usage does; query is that of /usage/players, in which
// empty values are left out.
func (c *Client) PlayerUsage(ctx context.Context, o Output, node string, query url.Values) error {
	maps.DeleteFunc(query, func(_ string, values []string) bool { return values[0] == "" })
	show := playersTable
	if o.CSV {
		show = playersCSV
	}
	call := Call{Method: http.MethodGet, Path: nodePath(node) + "/usage/players", Query: query}
	return c.run(ctx, o, of(call, func(w io.Writer, u *operator.PlayersUsage) error {
		err := show(w, u)
		missingLines(o.Stderr, "the usage", u.Missing)
		return err
	}))
}

// ReportCanary sends the report of a canary.
func (c *Client) ReportCanary(ctx context.Context, r operator.CanaryReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var done operator.ActionResult
	return c.Do(ctx, Call{Method: http.MethodPost, Path: "/canary", Body: body}, &done)
}

// Settings shows the settings in force.
func (c *Client) Settings(ctx context.Context, o Output) error {
	return c.run(ctx, o, of(Call{Method: http.MethodGet, Path: "/config"}, settingsTable))
}

// Reload lets the process read its settings again.
func (c *Client) Reload(ctx context.Context, o Output) error {
	return c.run(ctx, o, of(Call{Method: http.MethodPost, Path: "/reload"}, reloadedTable))
}

// Upgrade lets a new process take over.
func (c *Client) Upgrade(ctx context.Context, o Output) error {
	return c.run(ctx, o, of(Call{Method: http.MethodPost, Path: "/upgrade", Within: upgradeWithin}, upgradedTable))
}

// Level shows the level of the log, or changes it if level is not empty.
func (c *Client) Level(ctx context.Context, o Output, level string) error {
	call := Call{Method: http.MethodGet, Path: "/log-level"}
	if level != "" {
		call.Method, call.Query = http.MethodPut, url.Values{"level": {level}}
	}
	return c.run(ctx, o, of(call, func(w io.Writer, l *admin.Level) error {
		_, err := fmt.Fprintln(w, l.Level)
		return err
	}))
}

// FastPath shows the program in the kernel, or turns it on or off if state is not empty.
func (c *Client) FastPath(ctx context.Context, o Output, state string) error {
	call := Call{Method: http.MethodGet, Path: "/fast-path"}
	if state != "" {
		call.Method, call.Query = http.MethodPut, url.Values{"state": {state}}
	}
	return c.run(ctx, o, of(call, fastPathTable))
}

// Drain lets a node run dry by what the query says, deadline and threshold, and
// Undrain ends that. No node is the process that is asked.
func (c *Client) Drain(ctx context.Context, o Output, node string, query url.Values) error {
	return c.run(ctx, o, of(Call{Method: http.MethodPost, Path: drainPath(node), Query: query}, drainLine))
}

// Undrain lets a node take new allocations again.
func (c *Client) Undrain(ctx context.Context, o Output, node string) error {
	return c.run(ctx, o, of(Call{Method: http.MethodDelete, Path: drainPath(node)}, drainLine))
}

func drainPath(node string) string { return nodePath(node) + "/drain" }

// nodePath is before the path of a page about a node.
func nodePath(node string) string {
	if node == "" {
		return ""
	}
	return "/nodes/" + url.PathEscape(node)
}
