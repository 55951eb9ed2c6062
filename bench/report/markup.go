package report

import (
	"encoding/json"
	"fmt"
	"html"
	"strings"
)

// markup is HTML. Whatever is a value of add is escaped, so only formats have tags.
type markup struct{ strings.Builder }

func (m *markup) add(format string, values ...string) {
	escaped := make([]any, len(values))
	for i, v := range values {
		escaped[i] = html.EscapeString(v)
	}
	fmt.Fprintf(m, format, escaped...)
}

func (m *markup) table(t table) {
	m.add("<table>\n<caption>%s</caption>\n<thead><tr>", t.Caption)
	for _, cell := range t.Head {
		m.add(`<th scope="col">%s</th>`, cell)
	}
	m.add("</tr></thead>\n<tbody>\n")
	for _, row := range t.Rows {
		m.add(`<tr><th scope="row">%s</th>`, row[0])
		for _, cell := range row[1:] {
			m.add("<td>%s</td>", cell)
		}
		m.add("</tr>\n")
	}
	m.add("</tbody>\n</table>")
}

// card is a table in a frame, if it has rows.
func (m *markup) card(t table) {
	if len(t.Rows) > 0 {
		m.add(`<div class="card scroll wide">`)
		m.table(t)
		m.add("</div>\n")
	}
}

func (m *markup) facts(facts []fact) {
	if len(facts) == 0 {
		return
	}
	m.add("<dl>\n")
	for _, f := range facts {
		class := ""
		if f.Name == "command" {
			class = "command"
		}
		m.add(`<dt>%s</dt><dd class="%s">%s</dd>`+"\n", f.Name, class, f.Value)
	}
	m.add("</dl>\n")
}

func (m *markup) list(items []string, class string) {
	m.add(`<ul class="%s">`, class)
	for _, item := range items {
		m.add("<li>%s</li>", item)
	}
	m.add("</ul>\n")
}

func (m *markup) plot(p plot) {
	m.add("<figure><figcaption><h2>Latency by percentile</h2>")
	if len(p.Lines) == 0 {
		m.add("No run has samples of latency.</figcaption></figure>\n")
		return
	}
	m.add("Which share of the datagrams offered arrived within which time. A line ends where the lost ones begin.</figcaption>\n")
	m.add(`<div class="plot" role="img" aria-label="Latency by percentile. The numbers are in the table below."></div>`)
	m.add(`<details><summary>Numbers of this plot</summary><div class="scroll">`)
	m.table(p.numbers())
	m.add("</div></details></figure>\n")
}

func (m *markup) run(r runView, compact bool) {
	class := "card"
	if compact {
		class = "card compact"
	}
	m.add(`<section class="%s"><h2>%s</h2><p class="verdict %s">%s</p>`+"\n", class, r.Name, r.Side, r.Verdict)
	for _, d := range r.Doubts {
		m.add(`<p class="doubt">Careful: %s.</p>`, d)
	}
	m.facts(r.Facts)
	m.add("</section>\n")
}

func (s *pageData) markup() string {
	var m markup
	m.WriteString(strings.NewReplacer("TITLE", html.EscapeString(s.Title), "/* uPlot */", uPlotStyle).Replace(pageHead))
	m.add("<h1>%s</h1>\n", s.Title)
	if !s.Many {
		for _, r := range s.Runs {
			name := ""
			if len(s.Runs) > 1 {
				name = r.Name + ": "
			}
			m.add(`<p class="verdict %s">%s%s</p>`+"\n", r.Side, name, r.Verdict)
		}
	}
	m.add(`<noscript><p class="note">The plot needs JavaScript; the table below it has its numbers.</p></noscript>` + "\n")
	m.plot(s.Plot)
	if len(s.Steps.Rows) > 0 {
		m.add("<h2>Search</h2>\n")
	}
	m.card(s.Steps)
	m.add("<h2>Numbers</h2>\n")
	for _, t := range []table{s.Ratios, s.Figures, s.Drops} {
		m.card(t)
	}
	if len(s.Notes) > 0 {
		m.list(s.Notes, "note")
	}
	if len(s.Refused) > 0 {
		m.add(`<section class="card"><h2>Not compared</h2>`)
		m.list(s.Refused, "")
		m.add("</section>\n")
	}
	if len(s.Common) > 0 {
		m.add(`<section class="card"><h2>All runs</h2>`)
		m.facts(s.Common)
		m.add("</section>\n")
	}
	for _, r := range s.Runs {
		m.run(r, s.Many)
	}
	m.add("</main>\n<footer>Latency counts from the time at which a datagram was meant to be sent. " +
		"Figures of different machines must not be compared; ratios within one machine may.</footer>\n")
	plot, err := json.Marshal(s.Plot) // which escapes <, > and &
	if err != nil {
		panic(err) // the data are texts and numbers
	}
	fmt.Fprintf(&m, "<script>\nconst plot = %s;\n/*\n%s*/\n%s%s\n</script>\n</body>\n</html>\n", plot, uPlotLicense, uPlot, script)
	return m.String()
}
