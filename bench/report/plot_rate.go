package report

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/bench"
)

// kneeLoss is the share of lost datagrams up to which a rate counts as carried.
const kneeLoss = 0.001

func rateLabel(v float64) string { return grouped(strconv.FormatFloat(v, 'f', -1, 64)) }

// ratesOverTime has what was offered, sent and delivered in each second.
func ratesOverTime(i int, r bench.Result, name string) plot {
	id, title := fmt.Sprintf("rates-%d", i+1), "Offered against delivered: "+name
	var values []float64
	for _, w := range counts() {
		values = append(values, secondsOf(r, w.get)...)
	}
	_, most, ok := extent(values, false)
	if !ok {
		return empty(id, title, "The run has no seconds.")
	}
	a := area{timeScale(r), linearScale(0, most, rateLabel), plotHeight}
	p := newPlot(id, title, "Datagrams that were due, sent and delivered in each second. Where delivered falls below sent, datagrams were lost or are on their way.", a)
	p.XLabel, p.YLabel = "since the start of the measured interval", "datagrams in the second"
	p.shadeEnds(a, r)
	p.draw(a, timeSeries(r, counts(), rateLabel)...)
	p.split(a, r)
	p.Numbers = table{Caption: title, Head: []string{"second", "offered", "sent", "delivered"}}
	for _, s := range r.Seconds {
		p.Numbers.Rows = append(p.Numbers.Rows, []string{strconv.Itoa(s.At), rateLabel(float64(s.Offered)), rateLabel(float64(s.Sent)), rateLabel(float64(s.Delivered))})
	}
	return p
}

// ratesOverRuns has a dot per run: what was asked for and what arrived. On the
// diagonal nothing was lost.
func ratesOverRuns(runs []bench.Result, names []string) plot {
	const id, title = "rates", "Offered against delivered, run by run"
	var all []series
	var values []float64
	p := plot{Numbers: table{Caption: title, Head: []string{"run", "offered/s", "delivered/s", "loss"}}}
	for i, r := range runs {
		s := series{name: names[i], class: class(i), dots: true, x: []float64{r.OfferedRate}, y: []float64{r.DeliveredRate}}
		s.titles = []string{fmt.Sprintf("%s: %s offered, %s delivered, %s lost", names[i],
			UnitRate.Format(r.OfferedRate), UnitRate.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio))}
		values = append(values, r.OfferedRate, r.DeliveredRate)
		all = append(all, s)
		p.Numbers.Rows = append(p.Numbers.Rows, []string{names[i], UnitNumber.Format(r.OfferedRate), UnitNumber.Format(r.DeliveredRate), UnitShare.Format(r.LossRatio)})
	}
	_, most, ok := extent(values, false)
	if !ok || most <= 0 {
		return empty(id, title, "Nothing was offered in any run.")
	}
	a := area{linearScale(0, most, rateLabel), linearScale(0, most, rateLabel), plotHeight}
	numbers := p.Numbers
	p = newPlot(id, title, "A dot per run: datagrams offered each second, and delivered. Dots below the diagonal lost some.", a)
	p.XLabel, p.YLabel, p.Numbers = "offered, datagrams/s", "delivered, datagrams/s", numbers
	p.draw(a, series{name: "nothing lost", class: "ideal", x: []float64{0, a.x.hi}, y: []float64{0, a.y.hi}, titles: []string{"", ""}})
	p.Lines[0].Dots = nil
	p.draw(a, all...)
	if k, ok := knee(runs); ok {
		x, _ := a.x.at(runs[k].OfferedRate)
		y, _ := a.y.at(runs[k].DeliveredRate)
		p.Labels = append(p.Labels, mark{X: px(a.px(x) - 10), Y: px(a.py(y) - 6), Text: "knee: " + UnitRate.Format(runs[k].OfferedRate)})
	}
	return p
}

// knee finds the highest rate that was carried, if a higher one of the same
// relay was not.
func knee(runs []bench.Result) (int, bool) {
	best, beyond := -1, false
	for i, r := range runs {
		carried := r.LossRatio <= kneeLoss && r.Sent > 0
		if carried && (best < 0 || r.OfferedRate > runs[best].OfferedRate) {
			best = i
		}
		if r.Dialect != runs[0].Dialect {
			return 0, false // Several relays have several knees.
		}
	}
	if best < 0 {
		return 0, false
	}
	beyond = slices.ContainsFunc(runs, func(r bench.Result) bool {
		return r.LossRatio > kneeLoss && r.OfferedRate > runs[best].OfferedRate
	})
	return best, beyond
}
