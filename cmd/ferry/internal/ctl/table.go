package ctl

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

// table writes rows of tab-separated cells under a head.
func table(w io.Writer, head string, rows []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, row := range rows {
		fmt.Fprintln(t, row)
	}
	return t.Flush()
}

// row joins cells; an empty one is a dash.
func row(cells ...string) string {
	for i := range cells {
		cells[i] = cmp.Or(printable(cells[i]), "-")
	}
	return strings.Join(cells, "\t")
}

func nodesTable(w io.Writer, all *operator.Nodes) error {
	var rows []string
	for _, n := range all.Nodes {
		seats := strconv.Itoa(n.Seats)
		if n.MaxSeats > 0 {
			seats += " of " + strconv.Itoa(n.MaxSeats)
		}
		version := n.Version
		if len(n.Lacks) > 0 {
			version += " (lacks " + strings.Join(n.Lacks, ", ") + ")"
		}
		state, traffic, running := n.State, "", up(n.Since)
		switch {
		case !n.Serves() || n.State == operator.StateUnknown:
			state, running = state+" since "+clock(n.LastHeartbeat), ""
		case n.Role == "relay" && !n.LastHeartbeat.IsZero():
			traffic = size(uint64(n.Traffic.SentBytes)) + "/s"
		}
		rows = append(rows, row(n.ID, n.Role, n.Region, state, strings.Join(n.UDP, ","), n.API,
			strconv.Itoa(n.Allocations), strconv.Itoa(n.Bound), strconv.Itoa(n.Links), seats, traffic, running, version))
	}
	if err := table(w, "NODE\tROLE\tREGION\tSTATE\tUDP\tAPI\tALLOCATIONS\tBOUND\tLINKS\tSEATS\tOUT\tUP\tVERSION", rows); err != nil {
		return err
	}
	if away := all.AwayText(clock); away != "" {
		so := "the states of other processes are not known, and there may be more of them"
		if all.StoreAway.IsZero() {
			so = "the states of relays there are not known, and there may be more of them"
		}
		_, err := fmt.Fprintf(w, "%s: %s\n", away, so)
		return err
	}
	return nil
}

func storeAwayLine(w io.Writer, since time.Time, so string) error {
	_, err := fmt.Fprintf(w, "the store has not answered since %s: %s\n", clock(since), so)
	return err
}

// clock is a time of day, with its date if it is not of the last 24 hours.
func clock(at time.Time) string {
	if time.Since(at) > 24*time.Hour {
		return at.Local().Format(time.DateTime)
	}
	return at.Local().Format(time.TimeOnly)
}

// up returns for how long a process has run, nothing where that is not known.
func up(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return age(time.Since(since).Seconds())
}

func bansTable(w io.Writer, all *admin.BanList) error {
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

func removedBansTable(w io.Writer, r *admin.RemovedBans) error {
	for _, b := range r.Bans {
		if !b.Prefix.IsValid() && b.Player == "" { // This process did not know it.
			fmt.Fprintln(w, printable(b.ID), "removed")
			continue
		}
		fmt.Fprintf(w, "%s removed: %s, until %s", printable(b.ID), printable(b.Subject()), b.Until.Local().Format(time.DateTime))
		if b.Reason != "" {
			fmt.Fprintf(w, " (%s)", printable(b.Reason))
		}
		fmt.Fprintln(w)
	}
	for _, b := range r.Remaining {
		fmt.Fprintf(w, "still banned, as a part of %s until %s (%s)\n", printable(b.Subject()),
			b.Until.Local().Format(time.DateTime), printable(b.ID))
	}
	return nil
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

// project names a project, by its digest where the name is not known.
func project(project, environment, tenant string) string {
	if project == "" && environment == "" {
		return tenant
	}
	return project + "/" + environment
}

func projectName(u *operator.ProjectUsage) string {
	if u.Others {
		return "(all others)"
	}
	return project(u.Project, u.Environment, u.Tenant)
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

// missingLines lists the relays whose part an answer lacks.
func missingLines(w io.Writer, what string, missing []operator.Missing) {
	for _, m := range missing {
		name := "a part of the fleet"
		if m.Relay != "" {
			name = "relay " + m.Relay
		}
		if m.Region != "" {
			name += " (" + m.Region + ")"
		}
		fmt.Fprintf(w, "%s of %s is missing: %s\n", what, printable(name), printable(m.Reason))
	}
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

func settingsTable(w io.Writer, s *admin.Settings) error {
	var rows []string
	for _, s := range s.Settings {
		rows = append(rows, row(s.Key, s.Value, s.Source))
	}
	return table(w, "SETTING\tVALUE\tFROM", rows)
}

func upgradedTable(w io.Writer, r *admin.UpgradeResult) error {
	_, err := fmt.Fprintf(w, "process %d has taken over\n", r.Process)
	return err
}

func reloadedTable(w io.Writer, r *admin.ReloadResult) error {
	var rows []string
	for _, part := range []struct {
		when    string
		changes []config.Change
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
		fmt.Fprintln(w, printable(note))
	}
	return nil
}

func whyTable(w io.Writer, y *operator.Why) error {
	name := printable(y.ID)
	if y.Role != "" {
		name = printable(y.Role) + " " + name
	}
	if y.JoinCode != "" {
		name += ", join code " + printable(y.JoinCode)
	}
	if y.Player != "" {
		name += ", player " + printable(y.Player)
	}
	fmt.Fprintf(w, "%s:\n  %s\n", name, printable(y.Because))
	for _, p := range y.Players {
		fmt.Fprintf(w, "player %s:\n  %s\n", printable(strings.TrimSpace(p.ID+" "+p.Player)), printable(p.Because))
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
		_, err := fmt.Fprintf(w, "no events of project %s are kept\n", printable(p.Project))
		return err
	}
	var rows []string
	for _, e := range slices.Backward(p.Events) {
		rows = append(rows, row(slices.Insert(eventCells(&e), 1, e.ID)...))
	}
	return table(w, "TIME\tALLOCATION\tEVENT\tWITH\tCOUNT\tREASON", rows)
}

func fastPathTable(w io.Writer, f *admin.FastPathState) error {
	state := "off"
	if f.On {
		state = "on"
	}
	fmt.Fprintf(w, "%s, %s, on %s\n", state, printable(f.Mode), printable(strings.Join(f.Interfaces, ", ")))
	if !f.On {
		fmt.Fprintf(w, "all datagrams go through the sockets, because %s\n", printable(f.OffBecause))
	}
	fmt.Fprintf(w, "%d datagrams relayed in the kernel\n", f.Datagrams)
	for _, part := range []struct {
		what   string
		counts map[string]uint64
	}{{"left to the sockets", f.Passed}, {"endpoints without a next hop", f.NoNextHop}} {
		for _, reason := range slices.Sorted(maps.Keys(part.counts)) {
			if n := part.counts[reason]; n > 0 {
				fmt.Fprintf(w, "%s, %s: %d\n", part.what, printable(reason), n)
			}
		}
	}
	return nil
}

func drainLine(w io.Writer, d *operator.DrainState) error {
	if d.Node != "" {
		fmt.Fprintf(w, "%s: ", printable(d.Node))
	}
	if !d.Draining {
		_, err := fmt.Fprintf(w, "not draining, allocations: %d\n", d.Allocations)
		return err
	}
	until := "with no deadline"
	if !d.Deadline.IsZero() {
		until = "at the latest at " + d.Deadline.Local().Format(time.RFC3339)
	}
	_, err := fmt.Fprintf(w, "draining, allocations left: %d; the process ends at %d, %s\n", d.Allocations, d.Threshold, until)
	return err
}

// age shows seconds as people say them.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < time.Hour:
		return d.Truncate(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + "d"
}

// group shows a number in groups of three digits.
func group(n uint64) string {
	text := strconv.FormatUint(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// size shows bytes in units of 1024.
func size(bytes uint64) string {
	if bytes < 1024 {
		return strconv.FormatUint(bytes, 10) + " B"
	}
	n, unit := float64(bytes), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if n /= 1024; n < 1024 {
			break
		}
	}
	return strconv.FormatFloat(n, 'f', 1, 64) + " " + unit
}

// rank returns the names of counts that are not zero, the largest first.
func rank(counts map[string]uint64) (names []string) {
	for name, n := range counts {
		if n > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return names
}
