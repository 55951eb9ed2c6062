package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// printer writes to the user. Errors of writing end up in the result of finish.
type printer struct {
	w    io.Writer
	json bool
	err  error
}

// line writes one line of text, and nothing in JSON.
func (p *printer) line(format string, args ...any) {
	if p.json || p.err != nil {
		return
	}
	_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
}

// finish writes the report with its verdict, which it returns.
func (p *printer) finish(r Report, verdict error) error {
	r.OK = verdict == nil
	if verdict != nil {
		r.Error = verdict.Error()
	}
	switch {
	case p.json:
		e := json.NewEncoder(p.w)
		e.SetIndent("", "  ")
		p.err = e.Encode(r)
	case len(r.Players) > 0:
		p.table(r)
	}
	return errors.Join(verdict, p.err)
}

// The table has a heading for groups of columns above that of the columns.
const (
	groups  = "%-6s  %-24s  %-24s  %s"
	columns = "%6s  %8s%10s%6s  %8s%10s%6s  %9s%11s"
	row     = "%6d  %8d%10d%6d  %8d%10d%6d  %6.2f ms%8.2f ms"
)

func (p *printer) table(r Report) {
	p.line("")
	p.line(groups, "", "to the host", "from the host", "round trip")
	p.line(columns, "player", "sent", "received", "lost", "sent", "received", "lost", "p50", "p99")
	for _, q := range r.Players {
		p.line(row, q.Player, q.ToHost.Sent, q.ToHost.Received, q.ToHost.Lost,
			q.FromHost.Sent, q.FromHost.Received, q.FromHost.Lost, q.RoundTrip.P50, q.RoundTrip.P99)
	}
	if r.OK {
		p.line("")
		p.line("every datagram arrived")
	}
}
