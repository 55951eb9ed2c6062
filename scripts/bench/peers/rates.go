package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/bench/report"
)

// Sizes of a panel of the drawing in units of its view box.
const (
	panelLeft, panelWidth  = 70.0, 600.0
	panelTop, panelHeight  = 104.0, 170.0
	panelStep, ratesHeight = 230.0, 790.0
)

// writeRates draws the rate sweep: CPU per datagram, p50 and p99 over the rates.
func (s *session) writeRates(d *document) error {
	i := slices.IndexFunc(chosen(s.o), func(sc scenario) bool { return sc.name == rateSweep })
	if i < 0 {
		return nil
	}
	sc := chosen(s.o)[i]
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 %.0f" width="720" height="%.0f" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1f2933">
<title>%s</title><rect width="720" height="%.0f" rx="12" fill="#ffffff"/>
<text x="20" y="26" font-size="16" font-weight="bold">%s</text>
<text x="20" y="44" font-size="12" fill="#52606d">Medians of the valid runs, %s, commit %s. Hollow: the hypervisor or the generator disturbed all runs.</text>
`, ratesHeight, ratesHeight, html.EscapeString(sc.about), ratesHeight, html.EscapeString(sc.about), html.EscapeString(d.Machine.CPU), html.EscapeString(d.Commit))
	colours := []string{"#1769aa", "#52606d", "#c05621", "#2f855a"}
	for i, name := range s.took(sc) {
		fmt.Fprintf(&b, `<circle cx="%d" cy="60" r="5" fill="%s"/><text x="%d" y="64">%s</text>`+"\n", 30+170*i, colours[i%4], 40+170*i,
			html.EscapeString(title(name)))
	}
	for i, kind := range []string{kindCPU, kindP50, kindP99} {
		p := panel{top: panelTop + panelStep*float64(i), left: sc.rates[0], right: sc.rates[len(sc.rates)-1]}
		label := kind + " in µs"
		if kind == kindCPU {
			label = "CPU per datagram in µs"
		}
		lines := make(map[string][]point)
		for _, name := range s.took(sc) {
			lines[name] = s.points(sc, kind, name)
			for _, at := range lines[name] {
				p.include(at.value)
			}
		}
		p.axes(&b, label, sc.rates)
		for j, name := range s.took(sc) {
			p.draw(&b, lines[name], colours[j%4])
		}
	}
	b.WriteString("</svg>\n")
	return s.write("peers-rates.svg", []byte(b.String()))
}

// point is the median of the valid runs at one rate, or of all if none is valid.
type point struct {
	rate, value float64 // per second; µs
	doubtful    bool
}

func (s *session) points(sc scenario, kind, peer string) (list []point) {
	for _, rate := range sc.rates {
		r := row{sc.name, kind, rate}
		sp := s.spread(r, peer)
		p := point{rate: rate, doubtful: sp.N == 0}
		if p.doubtful {
			sp = s.spreadAll(r, peer)
		}
		if p.value = sp.Median / 1e3; p.value > 0 {
			list = append(list, p)
		}
	}
	return list
}

// spreadAll returns a relay's values over all rounds, the invalid ones too.
func (s *session) spreadAll(r row, peer string) report.Spread {
	var list []float64
	for i := range s.samples {
		if one := &s.samples[i]; one.Peer == peer && r.of(one) && (one.Round > 1 || s.o.rounds == 1) {
			list = append(list, one.value(r.kind))
		}
	}
	return report.Median(list)
}

// panel is a plot with logarithmic axes.
type panel struct{ top, left, right, low, high float64 }

func (p *panel) include(v float64) {
	if p.high == 0 || v < p.low {
		p.low = v
	}
	p.high = max(p.high, v)
}

func (p *panel) x(rate float64) float64 {
	return panelLeft + panelWidth*math.Log(rate/p.left)/math.Log(p.right/p.left)
}

func (p *panel) y(v float64) float64 {
	low, high := p.low*0.9, p.high*1.1
	return p.top + panelHeight*(1-math.Log(v/low)/math.Log(high/low))
}

func (p *panel) axes(b *strings.Builder, label string, rates []float64) {
	fmt.Fprintf(b, `<text x="20" y="%.1f" font-weight="bold">%s</text>`+"\n", p.top-10, label)
	const labelWidth = 60
	labelled := -labelWidth + 0.0
	for _, rate := range rates {
		x := p.x(rate)
		fmt.Fprintf(b, `<path d="M%.1f %.1fV%.1f" stroke="#e4e7eb"/>`+"\n", x, p.top, p.top+panelHeight)
		if x-labelled < labelWidth {
			continue
		}
		labelled = x
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" font-size="12">%s/s</text>`+"\n", x, p.top+panelHeight+16, thousands(rate))
	}
	for e := -3; e < 8; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow10(e); v >= p.low*0.9 && v <= p.high*1.1 {
				fmt.Fprintf(b, `<path d="M%.1f %.1fH%.1f" stroke="#e4e7eb"/><text x="%.1f" y="%.1f" text-anchor="end" font-size="12">%g</text>`+"\n",
					panelLeft, p.y(v), panelLeft+panelWidth, panelLeft-14, p.y(v)+4, v)
			}
		}
	}
}

func (p *panel) draw(b *strings.Builder, list []point, colour string) {
	path := ""
	for i, at := range list {
		c := "L"
		if i == 0 {
			c = "M"
		}
		path += fmt.Sprintf("%s%.1f %.1f", c, p.x(at.rate), p.y(at.value))
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, colour)
	for _, at := range list {
		fill := colour
		if at.doubtful {
			fill = "#ffffff"
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s" stroke="%s"/>`+"\n", p.x(at.rate), p.y(at.value), fill, colour)
	}
}
