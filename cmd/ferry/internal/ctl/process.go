package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Settings shows the settings in force.
func Settings() Request {
	return listing(operator.ListSettings, "", operator.NoQuery{}, rows(settingsTable))
}

// Reload lets the process read its settings again.
func Reload() Request { return tableOf(Call{Method: http.MethodPost, Path: "/reload"}, reloadedTable) }

// Upgrade lets a new process take over.
func Upgrade() Request {
	return tableOf(Call{Method: http.MethodPost, Path: "/upgrade", Within: upgradeWithin}, upgradedTable)
}

// Level shows the level of the log, or changes it if level is not empty.
func Level(level string) Request {
	return tableOf(showOrSet("/log-level", "level", level), func(w io.Writer, l *operator.LogLevel) error {
		_, err := fmt.Fprintln(w, l.Level)
		return err
	})
}

// FastPath shows the program in the kernel, or turns it on or off if state is not empty.
func FastPath(state string) Request {
	return tableOf(showOrSet("/fast-path", "state", state), fastPathTable)
}

// showOrSet is the call that sets a parameter of a page, or only gets the page if value is empty.
func showOrSet(path, name, value string) Call {
	if value == "" {
		return Call{Path: path}
	}
	return Call{Method: http.MethodPut, Path: path, Query: url.Values{name: {value}}}
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

func settingsTable(w io.Writer, s *operator.Settings) error {
	var rows []string
	for _, s := range s.Settings {
		rows = append(rows, row(s.Key, s.Value, s.Source))
	}
	return table(w, "SETTING\tVALUE\tFROM", rows)
}

func upgradedTable(w io.Writer, r *operator.UpgradeResult) error {
	_, err := fmt.Fprintf(w, "process %d has taken over\n", r.Process)
	return err
}

func reloadedTable(w io.Writer, r *operator.ReloadResult) error {
	var rows []string
	for _, part := range []struct {
		when    string
		changes []operator.SettingChange
	}{{"now", r.Changed}, {"after a restart", r.Restart}} {
		for _, c := range part.changes {
			rows = append(rows, row(c.Key, c.Was, c.Now, part.when))
		}
	}
	if len(rows) == 0 {
		rows = append(rows, "(no setting has changed)")
	}
	if err := table(w, "SETTING\tWAS\tIS\tIN FORCE", rows); err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, printable.Line(note))
	}
	return nil
}

func fastPathTable(w io.Writer, f *operator.FastPath) error {
	state := "off"
	if f.On {
		state = "on"
	}
	fmt.Fprintf(w, "%s, %s, on %s\n", state, printable.Line(f.Mode), printable.Line(strings.Join(f.Interfaces, ", ")))
	if !f.On {
		fmt.Fprintf(w, "all datagrams go through the sockets, because %s\n", printable.Line(f.OffBecause))
	}
	fmt.Fprintf(w, "%d datagrams relayed in the kernel\n", f.Datagrams)
	if f.FilterChanges > 0 {
		fmt.Fprintf(w, "changes of nftables or tc, after which each player passes them anew: %d\n", f.FilterChanges)
	}
	for _, part := range []struct {
		what   string
		counts map[string]uint64
	}{{"left to the sockets", f.Passed}, {"endpoints without a next hop", f.NoNextHop}} {
		for _, reason := range slices.Sorted(maps.Keys(part.counts)) {
			if n := part.counts[reason]; n > 0 {
				fmt.Fprintf(w, "%s, %s: %d\n", part.what, printable.Line(reason), n)
			}
		}
	}
	return nil
}
