package helm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/VictoriaMetrics/metricsql"
)

// Functions of our expressions. The parser knows more, since MetricsQL is more than PromQL.
var (
	ofCounters   = []string{"rate", "increase"}
	ofValues     = []string{"time", "histogram_quantile"}
	aggregations = []string{"sum", "max", "min", "count"}
)

var window = regexp.MustCompile(`^[0-9]+[smhd]$`)

// everywhere are labels that Prometheus adds; open are labels with values that
// one scrape does not show.
var (
	everywhere = []string{"job", "instance"}
	open       = []string{"status", "call", "relay", "region"}
)

// check returns the series that a PromQL expression selects, and its faults. What our files do not
// use of the language is a fault.
func (p page) check(expr string) (names, faults []string) {
	parsed, err := metricsql.Parse(expr)
	if err != nil {
		return nil, []string{err.Error()}
	}
	e := expression{page: p}
	e.walk(parsed, "", false)
	if len(e.bare) > 0 && len(e.names) > 1 {
		e.fault("the labels of %v match no other side of a comparison: sum by (instance) both", e.bare)
	}
	for _, label := range e.grouped {
		if !slices.Contains(everywhere, label) && !slices.ContainsFunc(e.names, func(n string) bool { return e.labels[n][label] != nil }) {
			e.fault("grouped by %s, which none of %v has", label, e.names)
		}
	}
	return e.names, e.faults
}

type expression struct {
	page
	grouped []string
	names   []string
	bare    []string // names with labels of their own that no aggregation takes away
	faults  []string
}

func (e *expression) fault(format string, args ...any) {
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

// walk checks a part of the expression. Call is the function whose argument it is, and aggregated
// whether an aggregation is around it.
func (e *expression) walk(part metricsql.Expr, call string, aggregated bool) {
	switch part := part.(type) {
	case *metricsql.MetricExpr:
		e.series(part, "", call, aggregated)
	case *metricsql.RollupExpr:
		series, ok := part.Expr.(*metricsql.MetricExpr)
		if !ok || part.Window == nil || part.Offset != nil || part.Step != nil || part.InheritStep || part.At != nil {
			e.fault("%s is no range of a series", part.AppendString(nil))
			return
		}
		e.series(series, string(part.Window.AppendString(nil)), call, aggregated)
	case *metricsql.FuncExpr:
		if !slices.Contains(ofCounters, part.Name) && !slices.Contains(ofValues, part.Name) {
			e.fault("function %s is not known here", part.Name)
		}
		for _, arg := range part.Args {
			e.walk(arg, part.Name, aggregated)
		}
	case *metricsql.AggrFuncExpr:
		if !slices.Contains(aggregations, part.Name) {
			e.fault("function %s is not known here", part.Name)
		}
		e.group(part.Name, part.Modifier, "by")
		for _, arg := range part.Args {
			e.walk(arg, part.Name, true)
		}
	case *metricsql.BinaryOpExpr:
		if op := strings.ToLower(part.Op); (op == "unless" || op == "and") && part.GroupModifier.Op == "" {
			e.fault("%s has no labels", op)
		}
		e.group(part.Op, part.GroupModifier, "on")
		e.group(part.Op, part.JoinModifier, "")
		e.walk(part.Left, "", aggregated)
		e.walk(part.Right, "", aggregated)
	case *metricsql.NumberExpr:
	default:
		e.fault("%s stands alone", part.AppendString(nil))
	}
}

func (e *expression) group(of string, modifier metricsql.ModifierExpr, op string) {
	if modifier.Op != "" && strings.ToLower(modifier.Op) != op {
		e.fault("%s %s is not known here", of, modifier.Op)
	}
	e.grouped = append(e.grouped, modifier.Args...)
}

// series checks a metric with its selectors and its range, which is empty without one.
func (e *expression) series(series *metricsql.MetricExpr, over, call string, aggregated bool) {
	if len(series.LabelFilterss) != 1 || series.LabelFilterss[0][0].Label != "__name__" {
		e.fault("%s has no name", series.AppendString(nil))
		return
	}
	filters := series.LabelFilterss[0]
	name := filters[0].Value
	kind := e.kind(name)
	if kind == "" {
		e.fault("no page has %s", name)
	}
	e.names = append(e.names, name)
	if len(e.labels[name]) > 0 && !aggregated {
		e.bare = append(e.bare, name)
	}
	for _, filter := range filters[1:] {
		e.selects(name, filter)
	}
	if over != "" && !window.MatchString(over) {
		e.fault("%s: no time", name)
	}
	asked := slices.Contains(ofCounters, call)
	if asked != (over != "") || asked != (kind == "counter") {
		e.fault("%s is a %s: counters are asked for their rate over a time, gauges as they are", name, kind)
	}
}

func (e *expression) selects(name string, filter metricsql.LabelFilter) {
	match, err := regexp.Compile("^(?:" + filter.Value + ")$")
	have := e.labels[name][filter.Label]
	switch {
	case err != nil:
		e.fault("%s%q cannot be read", filter.Label, filter.Value)
		return
	case slices.Contains(everywhere, filter.Label):
		return
	case have == nil:
		e.fault("%s has no label %s", name, filter.Label)
		return
	case slices.Contains(open, filter.Label):
		return
	}
	wanted := []string{filter.Value}
	if filter.IsRegexp {
		wanted = strings.Split(filter.Value, "|")
	}
	for _, w := range wanted {
		if !have[w] && !(strings.ContainsAny(w, ".*+") && matchesAny(match, have)) {
			e.fault("%s is never %q at %s", filter.Label, w, name)
		}
	}
}

func matchesAny(match *regexp.Regexp, values map[string]bool) bool {
	for v := range values {
		if match.MatchString(v) {
			return true
		}
	}
	return false
}
