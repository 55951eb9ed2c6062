package report

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

func render(t *testing.T, runs ...bench.Result) string {
	t.Helper()
	var b strings.Builder
	if err := HTML(&b, runs); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

type element struct {
	name  string
	attrs map[string]string
	depth int
}

func cutScript(t *testing.T, page string) (rest string, p plot) {
	t.Helper()
	before, code, ok := strings.Cut(page, "<script>\nconst plot = ")
	code, after, closed := strings.Cut(code, "</script>")
	if !ok || !closed || strings.Contains(before+after, "<script") || strings.Contains(code, "<script") {
		t.Fatal("the page has not one script")
	}
	if err := json.NewDecoder(strings.NewReader(code)).Decode(&p); err != nil {
		t.Fatalf("the data of the plot: %v", err)
	}
	return before + after, p
}

// parse reads the page without its script as strict XML, which it is by intention: a page that a
// name could break out of would not parse.
func parse(t *testing.T, page string) (elements []element, text string) {
	t.Helper()
	page, _ = cutScript(t, page)
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict = true
	depth := 0
	var words strings.Builder
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements, words.String()
		}
		if err != nil {
			t.Fatalf("the page does not parse: %v", err)
		}
		switch v := token.(type) {
		case xml.StartElement:
			e := element{name: v.Name.Local, attrs: map[string]string{}, depth: depth}
			for _, a := range v.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			elements = append(elements, e)
			depth++
		case xml.EndElement:
			depth--
			words.WriteByte('\n')
		case xml.CharData:
			words.Write(v)
		}
	}
}

func count(elements []element, name string) (n int) {
	for _, e := range elements {
		if e.name == name {
			n++
		}
	}
	return n
}

func TestHTMLShowsAllNumbers(t *testing.T) {
	a, b := sample("first", 1), sample("second", 1.5)
	elements, text := parse(t, render(t, a, b))
	for _, r := range []bench.Result{a, b} {
		for _, f := range append(figuresOf(r), drops(r)...) {
			if !strings.Contains(text, f.Name) || !strings.Contains(text, f.Text()) {
				t.Errorf("%s: %s = %s is missing", r.Name, f.Name, f.Text())
			}
		}
		for _, f := range facts(r) {
			if !strings.Contains(text, f.Value) {
				t.Errorf("%s: %s %q is missing", r.Name, f.Name, f.Value)
			}
		}
		for _, q := range r.Latency.Series {
			if want := figures.Time.Format(float64(q.Value)); !strings.Contains(text, want) {
				t.Errorf("%s: quantile %s is missing", r.Name, want)
			}
		}
		if !strings.Contains(text, verdict(r)) {
			t.Errorf("%s: no verdict", r.Name)
		}
	}
	if n := count(elements, "figure"); n != 1 {
		t.Errorf("%d figures, want 1", n)
	}
	if !strings.Contains(text, "1.500") {
		t.Error("the ratio of the runs is missing")
	}
}

func TestHTMLPlotIsAccessible(t *testing.T) {
	elements, _ := parse(t, render(t, sample("one", 1), sample("two", 2)))
	plots := 0
	for i, e := range elements {
		if e.attrs["class"] != "plot" {
			continue
		}
		plots++
		if e.attrs["role"] != "img" || e.attrs["aria-label"] == "" || elements[i+1].name != "details" {
			t.Errorf("plot %d has no role, label or numbers", plots)
		}
	}
	if plots != 1 {
		t.Errorf("%d plots, want 1", plots)
	}
}

// A search makes dozens of runs: all have their numbers and a line.
func TestHTMLOfManyRuns(t *testing.T) {
	var runs []bench.Result
	for i := range 20 {
		runs = append(runs, sample("step", 1+float64(i)/10))
	}
	page := render(t, runs...)
	_, text := parse(t, page)
	if _, p := cutScript(t, page); len(p.Lines) != 20 || !strings.Contains(text, "step #20") {
		t.Errorf("%d lines, or no run 20", len(p.Lines))
	}
}

func TestHTMLIsSelfContained(t *testing.T) {
	text, _ := cutScript(t, render(t, sample("one", 1)))
	if m := regexp.MustCompile(`(?i)https?://|url\(|@import|src=|<link|javascript:`).FindString(text); m != "" {
		t.Errorf("the page contains %q", m)
	}
	for _, want := range []string{"prefers-color-scheme: dark", "default-src 'none'", `lang="en"`, `charset="utf-8"`, "<title>"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestHTMLEscapes(t *testing.T) {
	const evil = `</title></svg><script>alert("x")</script>'&\`
	r := sample(evil, 1)
	r.Commit, r.Dialect, r.Limits, r.Causes = evil, evil, evil, []bench.Cause{{Limit: "server", Reason: evil}}
	r.Command = []string{evil}
	r.Machine.CPU, r.Machine.Kernel = evil, evil
	r.Errors = map[string]uint64{evil: 5}
	r.Load.Shape = evil
	r.Churn = &bench.Churn{}
	r.Churn.Steps = grow(r.Churn.Steps)
	r.Churn.Steps[0].Name, r.Churn.Steps[0].Latency = evil, bench.Latency{Samples: 1, P50: 1}
	other := r
	other.Name = evil + " again"
	other.Machine.ID = evil
	_, text := parse(t, render(t, r, other, sample("plain", 1)))
	if !strings.Contains(text, evil) {
		t.Error("the name is not shown as it is")
	}
}

func TestHTMLOfBrokenRuns(t *testing.T) {
	all := []bench.Result{}
	for name, r := range brokenRuns() {
		all = append(all, r)
		t.Run(name, func(t *testing.T) { checkDrawing(t, render(t, r)) })
		t.Run(name+" and sample", func(t *testing.T) { checkDrawing(t, render(t, sample("good", 1), r)) })
	}
	t.Run("all", func(t *testing.T) { checkDrawing(t, render(t, all...)) })
	if err := HTML(io.Discard, nil); err == nil {
		t.Errorf("no runs: %v", err)
	}
}

// checkDrawing fails unless each line has as many values as there are points, and one that its axes can show.
func checkDrawing(t *testing.T, page string) {
	t.Helper()
	_, p := cutScript(t, page)
	if !slices.IsSorted(p.At) || len(slices.Compact(slices.Clone(p.At))) != len(p.At) {
		t.Errorf("x is %v", p.At)
	}
	for _, l := range p.Lines {
		shown := slices.DeleteFunc(slices.Clone(l.Values), func(v *float64) bool { return v == nil })
		if len(l.Values) != len(p.At) || len(shown) == 0 || slices.ContainsFunc(shown, func(v *float64) bool { return *v <= 0 }) {
			t.Errorf("%d values for %d points, %d shown", len(l.Values), len(p.At), len(shown))
		}
	}
}

func TestLabelsAreUnique(t *testing.T) {
	got := fmt.Sprint(labels([]bench.Result{sample("a", 1), sample("b", 1), sample("a", 1),
		{Dialect: "swap", Load: bench.Load{Shape: "star"}}}))
	if want := "[a #1 b a #2 swap star]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
