package ctl

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Nodes shows this process, or all of a fleet.
func Nodes() Request { return listing(operator.ListNodes, "", operator.NoQuery{}, rows(nodesTable)) }

// Drain lets a node run dry by what the query says, deadline and threshold, and
// Undrain ends that. No node is the process that is asked.
func Drain(node string, query url.Values) Request {
	return tableOf(Call{Method: http.MethodPost, Path: nodePath(node) + "/drain", Query: query}, drainLine)
}

// Undrain lets a node take new allocations again.
func Undrain(node string) Request {
	return tableOf(Call{Method: http.MethodDelete, Path: nodePath(node) + "/drain"}, drainLine)
}

func nodePath(node string) string {
	if node == "" {
		return ""
	}
	return "/nodes/" + url.PathEscape(node)
}

// measuredAfter is the time after the start of a relay at which its traffic is measured.
const measuredAfter = 10 * time.Second

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
		case n.Traffic != (operator.Traffic{}) || n.Role != "api" && !n.Since.IsZero() && time.Since(n.Since) > measuredAfter:
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

// up returns for how long a process has run, nothing where that is not known.
func up(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return age(time.Since(since).Seconds())
}

func drainLine(w io.Writer, d *operator.DrainState) error {
	if d.Node != "" {
		fmt.Fprintf(w, "%s: ", printable.Line(d.Node))
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
