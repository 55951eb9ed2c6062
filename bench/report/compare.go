package report

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// ErrIncomparable is returned for runs whose ratio would have no meaning. The
// error that wraps it lists the reasons.
var ErrIncomparable = errors.New("runs cannot be compared")

// Comparison holds the ratios of two runs on one machine under one load.
type Comparison struct {
	A       string        `json:"a"` // label of the base
	B       string        `json:"b"`
	Figures []FigureRatio `json:"figures"`
	// Warnings are reasons to distrust one of the runs.
	Warnings []string `json:"warnings,omitempty"`
	// Notes are differences between the runs that do not prevent a comparison.
	Notes []string `json:"notes,omitempty"`
}

// FigureRatio is one figure of both runs. Ratio is B divided by A; 0 if either
// was not measured or is 0.
type FigureRatio struct {
	Name  string  `json:"name"`
	A     Figure  `json:"a"`
	B     Figure  `json:"b"`
	Ratio float64 `json:"ratio"`
}

// Compare returns the ratios of b to a. It returns [ErrIncomparable] for runs
// on different machines, and for loads that differ in shape, direction,
// alignment, payload or the kind of loop. It notes other differences, such as
// the rate or the number of matches.
func Compare(a, b bench.Result) (Comparison, error) {
	if reasons := incomparableReasons(a, b); len(reasons) > 0 {
		return Comparison{}, fmt.Errorf("%w: %s", ErrIncomparable, strings.Join(reasons, "; "))
	}
	names := labels([]bench.Result{a, b})
	c := Comparison{A: names[0], B: names[1], Notes: loadDifferences(a, b)}
	c.Warnings = append(warnings(names[0], a), warnings(names[1], b)...)
	c.Figures = ratios(Figures(a), Figures(b))
	return c, nil
}

// incomparableReasons returns why two runs cannot be compared.
func incomparableReasons(a, b bench.Result) (reasons []string) {
	if a.Machine.ID == "" || b.Machine.ID == "" {
		reasons = append(reasons, "a run does not say which machine it was made on")
	} else if a.Machine.ID != b.Machine.ID {
		reasons = append(reasons, fmt.Sprintf("different machines: %s (%s, %d cores, kernel %s) and %s (%s, %d cores, kernel %s)",
			a.Machine.ID, a.Machine.CPU, a.Machine.Cores, a.Machine.Kernel,
			b.Machine.ID, b.Machine.CPU, b.Machine.Cores, b.Machine.Kernel))
	}
	for _, d := range differingAspects([]property{
		{"shape", a.Load.Shape, b.Load.Shape},
		{"direction", a.Load.Direction, b.Load.Direction},
		{"align", a.Load.Align, b.Load.Align},
		{"players per match", a.Load.Players, b.Load.Players},
		{"traffic", a.Load.Traffic, b.Load.Traffic},
		{"payload", a.Load.Payload, b.Load.Payload},
		{"loop", loopText(a.Load), loopText(b.Load)},
	}) {
		reasons = append(reasons, "different "+d)
	}
	return reasons
}

func loopText(l bench.Load) string {
	if l.Window > 0 {
		return "closed"
	}
	return "open"
}

// loadDifferences returns the differences that do not prevent a comparison.
func loadDifferences(a, b bench.Result) []string {
	return differingAspects([]property{
		{"dialect", a.Dialect, b.Dialect},
		{"transport", transportText(a.Load), transportText(b.Load)},
		{"limits", a.Limits, b.Limits},
		{"commit", a.Commit, b.Commit},
		{"matches", a.Load.Matches, b.Load.Matches},
		{"flows", a.Load.Flows, b.Load.Flows},
		{"rate", UnitRate.Format(a.Load.Rate), UnitRate.Format(b.Load.Rate)},
		{"window", a.Load.Window, b.Load.Window},
		{"duration", a.Load.Duration, b.Load.Duration},
		{"BINDs", UnitRate.Format(a.Load.BindRate), UnitRate.Format(b.Load.BindRate)},
		{"allocations", allocationsText(a.Load), allocationsText(b.Load)},
		{"baseline", a.Load.Baseline, b.Load.Baseline},
		{"sessions", UnitRate.Format(a.Load.ChurnRate), UnitRate.Format(b.Load.ChurnRate)},
		{"pinning", pinningText(a.Load), pinningText(b.Load)},
		{"wire bytes", a.WireBytes, b.WireBytes},
		{"toolchain of the generator", a.Machine.Go, b.Machine.Go},
		{"governor", a.Machine.Governor, b.Machine.Governor},
	})
}

func allocationsText(l bench.Load) string {
	if l.AllocateWorkers == 0 {
		return ""
	}
	return allocateText(l)
}

// property is a value of two runs that may differ.
type property struct {
	name string
	a, b any
}

func differingAspects(aspects []property) (list []string) {
	for _, s := range aspects {
		if s.a != s.b {
			list = append(list, fmt.Sprintf("%s: %s and %s", s.name,
				printable(orDash(fmt.Sprint(s.a))), printable(orDash(fmt.Sprint(s.b)))))
		}
	}
	return list
}

func warnings(name string, r bench.Result) (list []string) {
	if !r.Valid {
		list = append(list, name+": "+Verdict(r))
	}
	for _, d := range cautions(r) {
		list = append(list, name+": "+d)
	}
	return list
}

// ratios returns the ratios in the order of a. Figures that only b has are left
// out.
func ratios(a, b []Figure) (list []FigureRatio) {
	byName := map[string]Figure{}
	for _, f := range b {
		byName[f.Name] = f
	}
	for _, f := range a {
		other, ok := byName[f.Name]
		if !ok {
			continue
		}
		r := FigureRatio{Name: f.Name, A: f, B: other}
		if f.Known && other.Known && f.Value > 0 && other.Value > 0 && !f.never() && !other.never() {
			r.Ratio = other.Value / f.Value
		}
		list = append(list, r)
	}
	return list
}

// Text writes the comparison as a table, warnings first.
func (c Comparison) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "B = %s against A = %s, ratios are B/A\n", c.B, c.A)
	writeRemarks(&b, c.Warnings, c.Notes)
	table := [][]string{{"", "A", "B", "B/A", "better"}}
	for _, f := range c.Figures {
		if f.A.Known || f.B.Known {
			table = append(table, []string{printable(f.Name), f.A.Text(), f.B.Text(), ratio(f.Ratio), better(f.A)})
		}
	}
	writeRows(&b, table)
	_, err := io.WriteString(w, b.String())
	return err
}

func better(f Figure) string {
	if f.More {
		return "higher"
	}
	return "lower"
}

func writeRemarks(b *strings.Builder, warnings, notes []string) {
	for _, s := range warnings {
		fmt.Fprintf(b, "CAREFUL: %s\n", s)
	}
	for _, s := range notes {
		fmt.Fprintf(b, "different %s\n", s)
	}
	fmt.Fprintln(b)
}
