package ctl

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
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
		cells[i] = cmp.Or(printable.Line(cells[i]), "-")
	}
	return strings.Join(cells, "\t")
}

// clock is a time of day, with its date if it is not of the last 24 hours.
func clock(at time.Time) string {
	if time.Since(at) > 24*time.Hour {
		return at.Local().Format(time.DateTime)
	}
	return at.Local().Format(time.TimeOnly)
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
		fmt.Fprintf(w, "%s of %s is missing: %s\n", what, printable.Line(name), printable.Line(m.Reason))
	}
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
