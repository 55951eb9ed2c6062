package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Bans shows the bans.
func Bans() Request { return listing(operator.ListBans, "", operator.NoQuery{}, rows(bansTable)) }

// Ban adds the ban that the query describes. It says first what the ban ends and shuts out, and asks on
// the terminal, unless confirmed is set.
func (c *Client) Ban(ctx context.Context, o Output, query operator.BanQuery, confirmed bool) error {
	if !o.Curl {
		text, err := affected(ctx, c, query)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(printable.NewWriter(o.Stderr), text); err != nil {
			return err
		}
		if !confirmed && !terminal(o.Stdin) {
			return errors.New("no ban was made: give --yes to ban without a question on a terminal")
		}
		if !confirmed && !isYes(o.Stdin, o.Stderr, "Ban?") {
			return errors.New("no ban was made")
		}
	}
	call := Call{Method: http.MethodPost, Path: "/bans", Query: operator.Values(query)}
	return c.Show(ctx, o, tableOf(call, func(w io.Writer, b *operator.Ban) error {
		_, err := fmt.Fprintf(w, "%s banned until %s (%s)\n", printable.Line(b.Subject()), b.Until.Local().Format(time.DateTime), b.ID)
		return err
	}))
}

// affected says what a ban ends now and shuts out. It is an error if there can be no such ban.
func affected(ctx context.Context, c *Client, query operator.BanQuery) (string, error) {
	var n operator.Affected
	err := c.Do(ctx, Call{Path: operator.ListAffected.Path, Query: operator.Values(query)}, &n)
	switch {
	case n.Refused != "":
		return "", errors.New(n.Refused)
	case err != nil:
		return fmt.Sprintf("what the ban ends now is not known: %v", err), nil
	}
	return n.Text, nil
}

func isYes(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question, " [y/N] ")
	line, _ := bufio.NewReader(in).ReadString('\n') // No line is a no.
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// Unban removes a ban by its id; or by its prefix, with those of networks inside it; or, if name is
// empty, that of the player in the query.
func Unban(name string, query operator.BanQuery) Request {
	call := Call{Method: http.MethodDelete, Path: "/bans", Query: operator.Values(query)}
	if _, ok := operator.ParsePrefix(name); ok {
		call.Query = url.Values{"prefix": {name}}
	} else if name != "" {
		call.Path += "/" + url.PathEscape(name)
	}
	return tableOf(call, removedBansTable)
}

func bansTable(w io.Writer, all *operator.Bans) error {
	var rows []string
	for i := range all.Bans {
		b := &all.Bans[i]
		rows = append(rows, row(b.ID, b.Subject(), b.Since.Local().Format(time.DateTime), b.Until.Local().Format(time.DateTime), b.Reason))
	}
	if all.NotKnown {
		return storeAwayLine(w, all.StoreAway, "the bans are not known")
	}
	if err := table(w, "BAN\tSUBJECT\tSINCE\tUNTIL\tREASON", rows); err != nil || all.StoreAway.IsZero() {
		return err
	}
	return storeAwayLine(w, all.StoreAway, "these are the bans of that time")
}

func removedBansTable(w io.Writer, r *operator.RemovedBans) error {
	for _, b := range r.Bans {
		if !b.Prefix.IsValid() && b.Player == "" { // This process did not know it.
			fmt.Fprintln(w, printable.Line(b.ID), "removed")
			continue
		}
		fmt.Fprintf(w, "%s removed: %s, until %s", printable.Line(b.ID), printable.Line(b.Subject()), b.Until.Local().Format(time.DateTime))
		if b.Reason != "" {
			fmt.Fprintf(w, " (%s)", printable.Line(b.Reason))
		}
		fmt.Fprintln(w)
	}
	for _, b := range r.Remaining {
		fmt.Fprintf(w, "still banned, as a part of %s until %s (%s)\n", printable.Line(b.Subject()),
			b.Until.Local().Format(time.DateTime), printable.Line(b.ID))
	}
	return nil
}

func storeAwayLine(w io.Writer, since time.Time, so string) error {
	_, err := fmt.Fprintf(w, "the store has not answered since %s: %s\n", clock(since), so)
	return err
}
