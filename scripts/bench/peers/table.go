package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// table is a table of the text output, in Markdown so that documents can quote it.
type table struct {
	Title string     `json:"title,omitempty"`
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
	Foot  []string   `json:"foot,omitempty"`
}

// incomparable lists differences that the ratios do not show.
var incomparable = []string{
	"TURN: a server adds or strips 4 bytes of ChannelData header per datagram (a copy for some), and knows its clients by address; it does not check the ids of sender and receiver in each datagram, as Ferry does.",
	"TURN: each client has a relayed port, and so the server a socket, of its own; a host of Ferry, the null relay and the C loop has one address for all.",
	"C loop and null relay: no look-up, no checks, no state. What Ferry costs more than they is what a relay is for.",
	"Merging: Ferry lets datagrams of one batch to one destination leave as one message (UDP_SEGMENT); on loopback such a message is taken apart only before the receiver's socket, in the sender's time: dearer than a network card that does it, cheaper than one that cannot. The C loop does so in star-merge only, the generator never.",
	"DTLS: AES-128-GCM everywhere. A host of Ferry is a client of it and has DTLS too, so a datagram is opened and sealed again; a host of TURN is a plain peer, so coturn does one of both per datagram.",
	"Closed loop: the side that is slower limits, and where that is the generator the relay still has time left; batches are as long as they get. Rates are not compared there, only CPU per datagram.",
	"CPU is the run time of the relay's process (all its threads) divided by the datagrams that arrived at the generator.",
}

func ratioText(s figures.Spread) string {
	switch s.N {
	case 0:
		return "–"
	case 1:
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
}

// ratios returns the tables to quote: Ferry compared with each relay, one for all scenarios with the same relays.
func (s *session) ratios() (list []table) {
	for _, sc := range chosen(s.o) {
		ours, bases := s.sides(sc)
		if len(ours) == 0 || len(bases) == 0 {
			continue
		}
		head := []string{"median (lowest–highest)"}
		for _, o := range ours {
			for _, b := range bases {
				head = append(head, title(o)+" / "+title(b))
			}
		}
		if n := len(list); n == 0 || !slices.Equal(list[n-1].Head, head) {
			list = append(list, table{Head: head})
		}
		t := &list[len(list)-1]
		t.Foot = append(append(t.Foot, fmt.Sprintf("%s: %s; payload %d B; datagrams to the relay: %s", sc.name, sc.about, s.o.payload, s.wire(sc))),
			s.leftOut(sc)...)
		for _, r := range s.rows(sc) {
			line := []string{sc.name + ", " + measureName(r.kind, r.rate)}
			for _, o := range ours {
				for _, b := range bases {
					line = append(line, s.cell(r, o, b))
				}
			}
			t.Rows = append(t.Rows, line)
		}
	}
	for i := range list {
		list[i].Foot = append(list[i].Foot, s.o.left...)
	}
	return list
}

// sides returns the columns: Ferry and each other relay, or with variants each
// and the plain C loop.
func (s *session) sides(sc scenario) (ours, bases []string) {
	for _, name := range s.took(sc) {
		switch {
		case sc.secure && name == "ferry":
			bases = append(bases, name)
		case name == "ferry", name == "ferry-dtls", sc.variants != nil && name != "c":
			ours = append(ours, name)
		default:
			bases = append(bases, name)
		}
	}
	return ours, bases
}

// cell is a ratio, with the number of pairs that are not in it.
func (s *session) cell(r row, ours, base string) string {
	c := s.compare(r, ours, base)
	if c.Left > 0 {
		return fmt.Sprintf("%s, %d left out", ratioText(c.Ratio), c.Left)
	}
	return ratioText(c.Ratio)
}

// leftOut returns the number of invalid runs of each relay, and the reason of
// the first.
func (s *session) leftOut(sc scenario) (list []string) {
	for _, name := range s.took(sc) {
		all, bad, why := 0, 0, ""
		for i := range s.samples {
			one := &s.samples[i]
			if one.Scenario != sc.name || one.Peer != name || one.Round == 1 && s.o.rounds > 1 {
				continue
			}
			if all++; one.Bad == "" {
				continue
			}
			if bad++; why == "" {
				why = one.Bad
			}
		}
		if bad > 0 {
			list = append(list, fmt.Sprintf("%s: %d of %d runs do not count, the first because %s", title(name), bad, all, why))
		}
	}
	return list
}

// wire lists the datagram sizes that the relays received.
func (s *session) wire(sc scenario) string {
	var parts []string
	for _, name := range s.took(sc) {
		for i := range s.samples {
			if one := &s.samples[i]; one.Scenario == sc.name && one.Peer == name {
				parts = append(parts, fmt.Sprintf("%s %d B", title(name), one.Result.WireBytes))
				break
			}
		}
	}
	return strings.Join(parts, ", ")
}

// absolute returns the medians of each relay.
func (s *session) absolute() (list []table) {
	for _, sc := range chosen(s.o) {
		names := s.took(sc)
		if len(names) == 0 {
			continue
		}
		t := table{Title: sc.name + ": medians, which are true of this machine only", Head: []string{""}}
		for _, n := range names {
			t.Head = append(t.Head, title(n))
		}
		for _, r := range s.rows(sc) {
			line := []string{measureName(r.kind, r.rate)}
			for _, n := range names {
				text := "–"
				if sp := s.spread(r, n); sp.N > 0 {
					text = figures.Time.Format(sp.Median)
				}
				line = append(line, text)
			}
			t.Rows = append(t.Rows, line)
		}
		list = append(list, t)
	}
	return list
}

// write prints a table with aligned columns.
func (t *table) write(w io.Writer) error {
	var b strings.Builder
	if b.WriteString("\n"); t.Title != "" {
		b.WriteString(t.Title + "\n\n")
	}
	lines := slices.Concat([][]string{t.Head, slices.Repeat([]string{"---"}, len(t.Head))}, t.Rows)
	for _, line := range lines {
		for i := range t.Head {
			width := 0
			for _, other := range lines {
				width = max(width, utf8.RuneCountInString(other[i]))
			}
			fmt.Fprintf(&b, "| %-*s ", width, line[i])
		}
		b.WriteString("|\n")
	}
	for _, line := range t.Foot {
		b.WriteString("  " + line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
