package ctl

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Usage shows what each project used of a node; empty: of the process that is asked, or of
// all relays if that is an API process. Relays whose part is missing are named on Stderr.
func Usage(node string) Request {
	return listing(operator.ListUsage, node, operator.NoQuery{}, showUsage(usageTable, usageCSV,
		func(u *operator.Usage) []operator.Missing { return u.Missing }))
}

// PlayerUsage shows what players used of a node, as Usage does.
func PlayerUsage(node string, q operator.PlayersQuery) Request {
	return listing(operator.ListPlayerUsage, node, q, showUsage(playersTable, playersCSV,
		func(u *operator.PlayersUsage) []operator.Missing { return u.Missing }))
}

// showUsage shows an answer as a table or as CSV, and its missing parts on Stderr.
func showUsage[T any](table, csv func(io.Writer, *T) error, missing func(*T) []operator.Missing) func(Output, *T) error {
	return func(o Output, u *T) error {
		show := table
		if o.CSV {
			show = csv
		}
		err := show(o.Stdout, u)
		missingLines(o.Stderr, "the usage", missing(u))
		return err
	}
}

func usageTable(w io.Writer, u *operator.Usage) error {
	var rows []string
	for _, p := range u.Projects {
		rows = append(rows, row(projectName(&p), strconv.Itoa(p.Allocations), strconv.Itoa(p.Hosts), strconv.Itoa(p.Players),
			group(uint64(p.PlayerSeconds)), group(p.Datagrams), size(p.Bytes)))
	}
	if err := table(w, "PROJECT\tALLOCATIONS\tHOSTS\tPLAYERS\tPLAYER-SECONDS\tDATAGRAMS\tBYTES", rows); err != nil {
		return err
	}
	return sinceLine(w, u.Since)
}

func usageCSV(w io.Writer, u *operator.Usage) error {
	c := csv.NewWriter(w)
	lines := [][]string{{"project", "environment", "tenant", "allocations", "hosts", "players", "player_seconds", "datagrams", "bytes"}}
	for _, p := range u.Projects {
		lines = append(lines, []string{
			p.Project, p.Environment, cmp.Or(p.Tenant, "others"), strconv.Itoa(p.Allocations), strconv.Itoa(p.Hosts), strconv.Itoa(p.Players),
			strconv.FormatFloat(p.PlayerSeconds, 'f', 1, 64), strconv.FormatUint(p.Datagrams, 10), strconv.FormatUint(p.Bytes, 10),
		})
	}
	return c.WriteAll(lines)
}

func sinceLine(w io.Writer, since time.Time) error {
	text := "-"
	if !since.IsZero() {
		text = since.Local().Format(time.RFC3339)
	}
	_, err := fmt.Fprintf(w, "since %s\n", text)
	return err
}

func playersTable(w io.Writer, u *operator.PlayersUsage) error {
	line := func(player, project string, c operator.PlayerCounts) string {
		return row(player, project, strconv.Itoa(c.Allocations), strconv.Itoa(c.Live), group(uint64(c.PlayerSeconds)),
			group(c.Datagrams), size(c.Bytes))
	}
	var rows []string
	for _, p := range u.Players {
		rows = append(rows, line(p.Player, project(p.Project, p.Environment, ""), p.PlayerCounts))
	}
	if u.Others != (operator.PlayerCounts{}) {
		rows = append(rows, line("(all others)", "", u.Others))
	}
	if err := table(w, "PLAYER\tPROJECT\tALLOCATIONS\tLIVE\tPLAYER-SECONDS\tDATAGRAMS\tBYTES", rows); err != nil {
		return err
	}
	return sinceLine(w, u.Since)
}

func playersCSV(w io.Writer, u *operator.PlayersUsage) error {
	lines := [][]string{{"player", "digest", "project", "environment", "allocations", "live", "player_seconds", "datagrams", "bytes"}}
	for _, p := range append(slices.Clone(u.Players), operator.PlayerUsage{Digest: "others", PlayerCounts: u.Others}) {
		lines = append(lines, []string{
			plainCell(p.Player), p.Digest, plainCell(p.Project), plainCell(p.Environment), strconv.Itoa(p.Allocations), strconv.Itoa(p.Live),
			strconv.FormatFloat(p.PlayerSeconds, 'f', 1, 64), strconv.FormatUint(p.Datagrams, 10), strconv.FormatUint(p.Bytes, 10),
		})
	}
	return csv.NewWriter(w).WriteAll(lines)
}

// plainCell marks a text that a spreadsheet would take for a formula: players choose names.
func plainCell(text string) string {
	if strings.IndexAny(text, "=+-@\t\r") == 0 {
		return "'" + text
	}
	return text
}
