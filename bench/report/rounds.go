package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// ErrRounds says that a list of runs does not alternate between two sides.
var ErrRounds = errors.New("runs do not alternate")

// Spread is the middle of some values and how far they reach.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"` // 0: there were none, and all else is 0
}

// Median returns the spread of values; the median of an even number is the mean
// of the middle two. NaN and infinite values do not count.
func Median(values []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	return Spread{(v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[0], v[len(v)-1], len(v)}
}

// PairedRatio returns the spread of b[i]/a[i]. Pairs in which a value is not
// above 0 do not count. It panics if the lengths differ.
func PairedRatio(a, b []float64) Spread {
	if len(a) != len(b) {
		panic("report: PairedRatio of lists of different lengths")
	}
	var list []float64
	for i := range a {
		if a[i] > 0 && b[i] > 0 {
			list = append(list, b[i]/a[i])
		}
	}
	return Median(list)
}

// Text writes the median with minimum and maximum.
func (s Spread) Text(u Unit) string {
	switch s.N {
	case 0:
		return none
	case 1:
		return u.Format(s.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", u.Format(s.Median), u.Format(s.Min), u.Format(s.Max))
}

func (s Spread) ratioText() string {
	if s.N == 0 {
		return none
	}
	return fmt.Sprintf("%s (%s – %s)", ratio(s.Median), ratio(s.Min), ratio(s.Max))
}

// Rounds are interleaved runs of two sides, A B A B ..., compared pair by pair,
// so that what drifts in the machine meets both.
type Rounds struct {
	A        string        `json:"a"`
	B        string        `json:"b"`
	Pairs    int           `json:"pairs"` // that count
	Figures  []RoundFigure `json:"figures"`
	Warnings []string      `json:"warnings,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
}

// RoundFigure is one figure over all rounds. The median ratio is that of the
// pairs, which is not the ratio of the medians.
type RoundFigure struct {
	Name  string `json:"name"`
	Unit  Unit   `json:"unit"`
	More  bool   `json:"more"` // higher is better
	A     Spread `json:"a"`
	B     Spread `json:"b"`
	Ratio Spread `json:"ratio"`
}

// CompareRounds takes runs in the order A B A B .... It returns [ErrRounds] if
// they do not alternate between two names, and [ErrIncomparable] if a pair, or
// the runs of one side, cannot be compared. Pairs during which the hypervisor
// took more than 1 % of the time do not count, unless that are all of them.
func CompareRounds(runs []bench.Result) (Rounds, error) {
	if err := alternate(runs); err != nil {
		return Rounds{}, err
	}
	out := Rounds{A: label(runs[0]), B: label(runs[1])}
	var pairs, doubtful []Comparison
	for i := 0; i < len(runs); i += 2 {
		c, err := comparePair(runs, i)
		if err != nil {
			return Rounds{}, err
		}
		for _, w := range c.Warnings {
			out.Warnings = append(out.Warnings, fmt.Sprintf("round %d: %s", 1+i/2, w))
		}
		for _, n := range c.Notes {
			if !slices.Contains(out.Notes, n) {
				out.Notes = append(out.Notes, n)
			}
		}
		if steal(runs[i].System) > maxSteal || steal(runs[i+1].System) > maxSteal {
			doubtful = append(doubtful, c)
			continue
		}
		pairs = append(pairs, c)
	}
	switch {
	case len(pairs) == 0:
		pairs = doubtful
		out.Warnings = append(out.Warnings, "the hypervisor disturbed every round: none was left out")
	case len(doubtful) > 0:
		out.Warnings = append(out.Warnings, fmt.Sprintf("%d of %d rounds left out, because the hypervisor disturbed them", len(doubtful), len(runs)/2))
	}
	out.Pairs, out.Figures = len(pairs), overRounds(pairs)
	return out, nil
}

func alternate(runs []bench.Result) error {
	if len(runs) < 2 || len(runs)%2 != 0 {
		return fmt.Errorf("%w: %d of them are no pairs", ErrRounds, len(runs))
	}
	for i, r := range runs {
		if first := runs[i%2]; label(r) != label(first) || r.Dialect != first.Dialect {
			return fmt.Errorf("%w: run %d is %s (%s), where %s (%s) was expected", ErrRounds, i+1,
				label(r), printable(r.Dialect), label(first), printable(first.Dialect))
		}
	}
	return nil
}

// comparePair compares runs i and i+1, and each with the first of its side.
func comparePair(runs []bench.Result, i int) (Comparison, error) {
	for _, pair := range [][2]int{{0, i}, {1, i + 1}} {
		if reasons := obstacles(runs[pair[0]], runs[pair[1]]); len(reasons) > 0 {
			return Comparison{}, fmt.Errorf("runs %d and %d: %w: %s", pair[0]+1, pair[1]+1, ErrIncomparable, strings.Join(reasons, "; "))
		}
	}
	c, err := Compare(runs[i], runs[i+1])
	if err != nil {
		return c, fmt.Errorf("runs %d and %d: %w", i+1, i+2, err)
	}
	return c, nil
}

// overRounds collects figure by figure what the pairs have in common.
func overRounds(pairs []Comparison) (list []RoundFigure) {
	type values struct{ a, b, pairedA, pairedB []float64 }
	byName := map[string]*values{}
	for _, c := range pairs {
		for _, f := range c.Figures {
			v := byName[f.Name]
			if v == nil {
				v = &values{}
				byName[f.Name] = v
				list = append(list, RoundFigure{Name: f.Name, Unit: f.A.Unit, More: f.A.More})
			}
			if f.A.Known {
				v.a = append(v.a, f.A.Value)
			}
			if f.B.Known {
				v.b = append(v.b, f.B.Value)
			}
			if f.A.Known && f.B.Known {
				v.pairedA, v.pairedB = append(v.pairedA, f.A.Value), append(v.pairedB, f.B.Value)
			}
		}
	}
	for i := range list {
		v := byName[list[i].Name]
		list[i].A, list[i].B, list[i].Ratio = Median(v.a), Median(v.b), PairedRatio(v.pairedA, v.pairedB)
	}
	return list
}

// Text writes medians with minimum and maximum as a table, warnings first.
func (r Rounds) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "B = %s against A = %s, %d interleaved rounds: median (min – max), ratios are B/A of each round\n", r.B, r.A, r.Pairs)
	remarks(&b, r.Warnings, r.Notes)
	table := [][]string{{"", "A", "B", "B/A", "better"}}
	for _, f := range r.Figures {
		if f.A.N > 0 || f.B.N > 0 {
			table = append(table, []string{printable(f.Name), f.A.Text(f.Unit), f.B.Text(f.Unit), f.Ratio.ratioText(), better(Figure{More: f.More})})
		}
	}
	rows(&b, table)
	_, err := io.WriteString(w, b.String())
	return err
}
