package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

type rateRuns struct {
	name  string // of the sweep
	rate  float64
	runs  []bench.Result
	valid []bench.Result // of runs
}

// sweeps returns the runs of sweeps by name and rising rate, nil if there are none: open loops of one name at
// several rates that are no steps of a search.
func sweeps(runs []bench.Result) (list []rateRuns) {
	rates := map[string]int{}
	for _, r := range runs {
		if r.Search != nil || r.Load.Rate == 0 {
			continue
		}
		name := strings.TrimSuffix(label(r), bench.AtRate(r.Load.Rate))
		i := slices.IndexFunc(list, func(p rateRuns) bool { return p.name == name && p.rate == r.Load.Rate })
		if i < 0 {
			i = len(list)
			list = append(list, rateRuns{name: name, rate: r.Load.Rate})
			rates[name]++
		}
		list[i].runs = append(list[i].runs, r)
		if r.Valid {
			list[i].valid = append(list[i].valid, r)
		}
	}
	list = slices.DeleteFunc(list, func(p rateRuns) bool { return rates[p.name] < 2 })
	slices.SortStableFunc(list, func(a, b rateRuns) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.rate, b.rate))
	})
	return list
}

// median returns the median of a figure over the valid rounds, or over all if none is valid.
func (p *rateRuns) median(name string) figure {
	runs := p.valid
	if len(runs) == 0 {
		runs = p.runs
	}
	var f figure
	var values []float64
	for _, r := range runs {
		for _, one := range figures(r) {
			if one.Name == name && one.Known {
				f, values = one, append(values, one.Value)
			}
		}
	}
	f.Value = Median(values).Median
	return f
}

// firstRounds returns the first round at each rate that is valid, or the first, with its name.
func firstRounds(points []rateRuns) (runs []bench.Result, names []string) {
	for _, p := range points {
		r := append(p.valid, p.runs...)[0]
		runs, names = append(runs, r), append(names, label(r))
	}
	return runs, names
}

func sweepPlots(runs []bench.Result) (list []plot) {
	points := sweeps(runs)
	if len(points) == 0 {
		return nil
	}
	x := axis{Label: "offered, datagrams/s", Kind: "count"}
	invalid := " Rounds that are not valid count only where no other is: those points are marked."
	latency := plot{
		ID: "latency-rate", Title: "Latency over offered rate",
		Desc: "Medians of the valid rounds. A line ends where the percentile is among the lost." + invalid,
		X:    x, Y: axis{Label: "latency from the due time", Kind: "time", Log: true},
	}
	loss := plot{
		ID: "loss-rate", Title: "Loss over offered rate", Desc: "The share of the datagrams offered that did not arrive." + invalid,
		X: x, Y: axis{Label: "lost", Kind: "share"},
	}
	for _, of := range []struct {
		p       *plot
		figures []string
	}{{&latency, []string{"latency p50", "latency p99", "latency p99.9"}}, {&loss, []string{"loss"}}} {
		marked, lines, names := map[number]number{}, map[string]map[number]number{}, []string{}
		for _, p := range points {
			for _, figure := range of.figures {
				name := strings.TrimPrefix(figure, "latency ")
				if points[0].name != points[len(points)-1].name {
					name = p.name + " " + name
				}
				if lines[name] == nil {
					lines[name], names = map[number]number{}, append(names, name)
				}
				f := p.median(figure)
				if lines[name][number(p.rate)] = number(f.Value); len(p.valid) == 0 && f.Known && !f.Unit.never(f.Value) {
					marked[number(p.rate)] = number(f.Value)
				}
			}
		}
		for _, name := range names {
			of.p.addLine(name, false, lines[name])
		}
		of.p.addLine("not valid", true, marked)
		list = append(list, of.p.align("No datagram arrived."))
	}
	return list
}

func sweepTable(runs []bench.Result) table {
	t := table{
		Caption: "By offered rate: medians of the valid rounds, or of all if none is valid",
		Head:    []string{"rate", "delivered", "loss", "p50", "p99", "p99.9", "CPU/datagram", "valid"},
	}
	for _, p := range sweeps(runs) {
		row := []string{strings.TrimSpace(p.name + " " + UnitRate.Format(p.rate))}
		for _, name := range []string{"delivered", "loss", "latency p50", "latency p99", "latency p99.9", "server CPU per datagram"} {
			row = append(row, p.median(name).Text())
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%d of %d", len(p.valid), len(p.runs))))
	}
	return t
}
