package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// errIncomparable is that of runs whose ratio would have no meaning. The error that wraps it lists the reasons.
var errIncomparable = errors.New("runs cannot be compared")

// errRounds is that of a list of runs that does not alternate between two sides.
var errRounds = errors.New("runs do not alternate")

// Compare writes a table of the ratios of each run to the first. Runs on different machines, and loads that
// differ in shape, direction, players, traffic, payload or the kind of loop, are an error. It notes other
// differences, such as the rate or the number of matches.
func Compare(w io.Writer, runs []bench.Result) (all error) {
	for i := 1; i < len(runs); i++ {
		if i > 1 {
			fmt.Fprintln(w)
		}
		c, err := compare(runs[0], runs[i])
		if err == nil {
			err = c.Text(w)
		}
		all = errors.Join(all, err)
	}
	return all
}

// CompareRounds writes one table about runs in the order A B A B .... An error are runs that do not alternate
// between two names, and pairs, or runs of one side, that cannot be compared. It ignores pairs during which
// the machine was disturbed, unless all pairs are such.
func CompareRounds(w io.Writer, runs []bench.Result) error {
	c, err := compareRounds(runs)
	if err != nil {
		return err
	}
	return c.Text(w)
}

// comparison has the figures of two sides on one machine under one load: of one run each, or of
// interleaved rounds, A B A B ..., so that drift of the machine affects both sides.
type comparison struct {
	A       string // label of the base
	B       string
	Pairs   int           // rounds that were compared; 0: one run of each side
	Figures []figureRatio // in the order in which the text of A has them
	// Warnings are reasons to distrust one of the runs.
	Warnings []string
	// Notes are differences between the runs that do not prevent a comparison.
	Notes []string
}

// figureRatio is one figure of both sides. Ratio is that of B/A of each pair, not the ratio of
// the medians, and leaves out pairs in which either was not measured or is 0.
type figureRatio struct {
	Name  string
	Unit  figures.Unit
	More  bool // higher is better
	A, B  figures.Spread
	Ratio figures.Spread
	// Lost is in how many pairs the figure of a side is a percentile among the lost. There is no ratio then.
	Lost int
}

// Verdict returns what the rounds show: which side is better if the interval of the ratio does not
// hold 1, and that no difference is shown if it does.
func (f figureRatio) Verdict() string {
	switch r := f.Ratio; {
	case f.Lost > 0:
		return fmt.Sprintf("lost in %d rounds", f.Lost)
	case r.N == 0:
		return figures.Dash
	case r.Low == 0:
		return "too few rounds"
	case r.Low <= 1 && r.High >= 1:
		return "no difference shown"
	case f.More == (r.Low > 1):
		return "B is better"
	}
	return "B is worse"
}

func (f figureRatio) better() string {
	if f.More {
		return "higher"
	}
	return "lower"
}

func compare(a, b bench.Result) (comparison, error) {
	if err := checkComparable(a, b); err != nil {
		return comparison{}, err
	}
	names := labels([]bench.Result{a, b})
	return comparison{
		A: names[0], B: names[1], Figures: compareFigures([]bench.Result{a, b}), Notes: loadDifferences(a, b),
		Warnings: append(warnings(names[0], a), warnings(names[1], b)...),
	}, nil
}

func compareRounds(runs []bench.Result) (comparison, error) {
	if err := checkAlternating(runs); err != nil {
		return comparison{}, err
	}
	out := comparison{A: label(runs[0]), B: label(runs[1])}
	var calm []bench.Result
	for i := 0; i < len(runs); i += 2 {
		for _, pair := range [][2]int{{0, i}, {1, i + 1}, {i, i + 1}} {
			if err := checkComparable(runs[pair[0]], runs[pair[1]]); err != nil {
				return comparison{}, fmt.Errorf("runs %d and %d: %w", pair[0]+1, pair[1]+1, err)
			}
		}
		for _, w := range append(warnings(out.A, runs[i]), warnings(out.B, runs[i+1])...) {
			out.Warnings = append(out.Warnings, fmt.Sprintf("round %d: %s", 1+i/2, w))
		}
		for _, n := range loadDifferences(runs[i], runs[i+1]) {
			if !slices.Contains(out.Notes, n) {
				out.Notes = append(out.Notes, n)
			}
		}
		if !runs[i].CausedBy("machine") && !runs[i+1].CausedBy("machine") {
			calm = append(calm, runs[i], runs[i+1])
		}
	}
	switch disturbed := len(runs) - len(calm); {
	case len(calm) == 0:
		calm = runs
		out.Warnings = append(out.Warnings, "the machine was disturbed in every round: none was left out")
	case disturbed > 0:
		out.Warnings = append(out.Warnings, fmt.Sprintf("%d of %d rounds left out, because the machine was disturbed",
			disturbed/2, len(runs)/2))
	}
	out.Pairs, out.Figures = len(calm)/2, compareFigures(calm)
	return out, nil
}

func checkAlternating(runs []bench.Result) error {
	if len(runs) < 2 || len(runs)%2 != 0 {
		return fmt.Errorf("%w: %d of them are no pairs", errRounds, len(runs))
	}
	for i, r := range runs {
		if first := runs[i%2]; label(r) != label(first) || r.Dialect != first.Dialect {
			return fmt.Errorf("%w: run %d is %s (%s), where %s (%s) was expected", errRounds, i+1,
				label(r), printable.Line(r.Dialect), label(first), printable.Line(first.Dialect))
		}
	}
	return nil
}

func checkComparable(a, b bench.Result) error {
	var reasons []string
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
		{"players per match", a.Load.Players, b.Load.Players},
		{"traffic", a.Load.Traffic, b.Load.Traffic},
		{"payload", a.Load.Payload, b.Load.Payload},
		{"loop", loopText(a.Load), loopText(b.Load)},
	}) {
		reasons = append(reasons, "different "+d)
	}
	if len(reasons) > 0 {
		return fmt.Errorf("%w: %s", errIncomparable, strings.Join(reasons, "; "))
	}
	return nil
}

func loopText(l bench.Load) string {
	if l.Window > 0 {
		return "closed"
	}
	return "open"
}

func loadDifferences(a, b bench.Result) []string {
	return differingAspects([]property{
		{"dialect", a.Dialect, b.Dialect},
		{"transport", transportText(a.Load), transportText(b.Load)},
		{"limits", a.Limits, b.Limits},
		{"commit", a.Commit, b.Commit},
		{"matches", a.Load.Matches, b.Load.Matches},
		{"flows", a.Load.Flows, b.Load.Flows},
		{"rate", figures.Rate.Format(a.Load.Rate), figures.Rate.Format(b.Load.Rate)},
		{"window", a.Load.Window, b.Load.Window},
		{"duration", a.Load.Duration, b.Load.Duration},
		{"BINDs", figures.Rate.Format(a.Load.BindRate), figures.Rate.Format(b.Load.BindRate)},
		{"sessions", figures.Rate.Format(a.Load.SessionRate), figures.Rate.Format(b.Load.SessionRate)},
		{"pinning", pinningText(a.Load), pinningText(b.Load)},
		{"wire bytes", a.WireBytes, b.WireBytes},
		{"toolchain of the generator", a.Machine.Go, b.Machine.Go},
		{"governor", a.Machine.Governor, b.Machine.Governor},
	})
}

type property struct {
	name string
	a, b any
}

func differingAspects(aspects []property) (list []string) {
	for _, s := range aspects {
		if s.a != s.b {
			list = append(list, fmt.Sprintf("%s: %s and %s", s.name,
				printable.Line(cmp.Or(fmt.Sprint(s.a), figures.Dash)), printable.Line(cmp.Or(fmt.Sprint(s.b), figures.Dash))))
		}
	}
	return list
}

func warnings(name string, r bench.Result) (list []string) {
	if !r.Valid {
		list = append(list, name+": "+verdict(r))
	}
	for _, d := range cautions(r) {
		list = append(list, name+": "+d)
	}
	return list
}

// compareFigures returns the figures that both runs of a pair have, of the pairs A B A B ....
func compareFigures(runs []bench.Result) (list []figureRatio) {
	type values struct{ a, b, pairedA, pairedB []float64 }
	byName := map[string]*values{}
	for i := 0; i < len(runs); i += 2 {
		others := figuresOf(runs[i+1])
		for _, a := range figuresOf(runs[i]) {
			at := slices.IndexFunc(others, func(f figure) bool { return f.Name == a.Name })
			if at < 0 {
				continue
			}
			b, v := others[at], byName[a.Name]
			if v == nil {
				v = &values{}
				byName[a.Name] = v
				list = append(list, figureRatio{Name: a.Name, Unit: a.Unit, More: a.More})
			}
			if a.Known {
				v.a = append(v.a, a.Value)
			}
			if b.Known {
				v.b = append(v.b, b.Value)
			}
			if a.Known && b.Known {
				v.pairedA, v.pairedB = append(v.pairedA, a.Value), append(v.pairedB, b.Value)
			}
		}
	}
	for i := range list {
		f, v := &list[i], byName[list[i].Name]
		f.A, f.B = figures.Median(v.a), figures.Median(v.b)
		for n := range v.pairedA {
			if f.Unit.IsLost(v.pairedA[n]) || f.Unit.IsLost(v.pairedB[n]) {
				f.Lost++
			}
		}
		if f.Lost == 0 {
			f.Ratio = figures.PairedRatio(v.pairedA, v.pairedB)
		}
	}
	return list
}

// Text writes the comparison as a table, warnings first. That of rounds has medians with minimum and maximum.
func (c comparison) Text(w io.Writer) error {
	var b strings.Builder
	head, how := []string{"", "A", "B", "B/A", "better"}, "ratios are B/A"
	if c.Pairs > 0 {
		head = []string{"", "A", "B", "B/A", "95 % interval", "better", "shown"}
		how = fmt.Sprintf("%d interleaved rounds: median (min – max), and of the ratios B/A of each round the median "+
			"with its 95 %% interval", c.Pairs)
	}
	fmt.Fprintf(&b, "B = %s against A = %s, %s\n", c.B, c.A, how)
	for _, s := range c.Warnings {
		fmt.Fprintf(&b, "CAREFUL: %s\n", s)
	}
	for _, s := range c.Notes {
		fmt.Fprintf(&b, "different %s\n", s)
	}
	fmt.Fprintln(&b)
	table := [][]string{head}
	for _, f := range c.Figures {
		if f.A.N == 0 && f.B.N == 0 {
			continue
		}
		row := []string{printable.Line(f.Name), f.A.Text(f.Unit), f.B.Text(f.Unit), ratio(f.Ratio.Median), f.better()}
		if c.Pairs > 0 {
			interval := figures.Dash
			if f.Ratio.Low > 0 {
				interval = ratio(f.Ratio.Low) + " – " + ratio(f.Ratio.High)
			}
			row = append(slices.Insert(row, 4, interval), f.Verdict())
		}
		table = append(table, row)
	}
	writeRows(&b, table)
	_, err := io.WriteString(w, b.String())
	return err
}
