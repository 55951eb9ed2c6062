package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// functions are the PromQL functions of our expressions; true for those that take
// a range of a counter.
var functions = map[string]bool{
	"rate": true, "increase": true,
	"sum": false, "max": false, "min": false, "time": false, "count": false, "histogram_quantile": false,
}

// aggregations are the functions that leave only the labels after by.
var aggregations = []string{"sum", "max", "min", "count"}

// token is a string, a range, a word or a sign.
var token = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9.]+|[=!]~|[=!<>]=|[-+*/(){},=<>]|\s+`)

// duration is the content of a range.
var duration = regexp.MustCompile(`^\[[0-9]+[smhd]\]$`)

// everywhere are labels that Prometheus adds; open are labels with values that
// one scrape does not show.
var (
	everywhere = []string{"job", "instance"}
	open       = []string{"status", "call"}
)

// check returns the series that a PromQL expression selects, and its faults. It
// parses only the part of the language that our files use; anything else is a
// fault.
func (p page) check(expr string) (names, faults []string) {
	e := expression{page: p}
	at := 0
	for _, m := range token.FindAllStringIndex(expr, -1) {
		if m[0] != at {
			break
		}
		if text := expr[m[0]:m[1]]; strings.TrimSpace(text) != "" {
			e.tokens = append(e.tokens, text)
		}
		at = m[1]
	}
	if at != len(expr) {
		return nil, []string{fmt.Sprintf("%q cannot be read", expr[at:])}
	}
	for e.at < len(e.tokens) {
		e.step()
	}
	if len(e.calls) > 0 {
		e.fault("a parenthesis is open")
	}
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

// expression is an expression that is being parsed.
type expression struct {
	page
	tokens  []string
	at      int
	calls   []string // enclosing functions; empty for a plain parenthesis
	grouped []string
	names   []string
	bare    []string // names with labels of their own that no aggregation takes away
	faults  []string
}

func (e *expression) fault(format string, args ...any) {
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

// next returns and consumes a token.
func (e *expression) next() (text string) {
	if e.at < len(e.tokens) {
		text = e.tokens[e.at]
	}
	e.at++
	return text
}

func (e *expression) peek() string {
	if e.at < len(e.tokens) {
		return e.tokens[e.at]
	}
	return ""
}

func (e *expression) step() {
	switch text := e.next(); {
	case text == "(":
		e.calls = append(e.calls, "")
	case text == ")":
		if len(e.calls) == 0 {
			e.fault("a parenthesis too many")
			return
		}
		e.calls = e.calls[:len(e.calls)-1]
	case text == "by":
		e.group()
	case text == "unless", text == "and":
		if e.next() != "on" {
			e.fault("%s has no labels", text)
		}
		e.group()
	case !isName(text):
		if strings.ContainsAny(text[:1], `["{}`) {
			e.fault("%s stands alone", text)
		}
	case e.peek() == "(" || e.peek() == "by":
		if _, ok := functions[text]; !ok {
			e.fault("function %s is not known here", text)
		}
		if e.peek() == "by" {
			e.next()
			e.group()
		}
		if e.next() != "(" {
			e.fault("%s is not called", text)
		}
		e.calls = append(e.calls, text)
	default:
		e.series(text)
	}
}

func isName(text string) bool {
	return text != "" && (text[0] == '_' || text[0] >= 'a' && text[0] <= 'z' || text[0] >= 'A' && text[0] <= 'Z')
}

// group parses the labels after by.
func (e *expression) group() {
	if e.next() != "(" {
		e.fault("no labels behind by")
	}
	for e.at < len(e.tokens) {
		switch text := e.next(); {
		case text == ")":
			return
		case text != ",":
			e.grouped = append(e.grouped, text)
		}
	}
}

// series parses a metric with its selectors.
func (e *expression) series(name string) {
	kind := e.kind(name)
	if kind == "" {
		e.fault("no page has %s", name)
	}
	e.names = append(e.names, name)
	if len(e.labels[name]) > 0 && !slices.ContainsFunc(e.calls, func(call string) bool { return slices.Contains(aggregations, call) }) {
		e.bare = append(e.bare, name)
	}
	if e.peek() == "{" {
		e.next()
		e.selectors(name)
	}
	ranged := strings.HasPrefix(e.peek(), "[")
	if ranged && !duration.MatchString(e.next()) {
		e.fault("%s: no time", name)
	}
	over := len(e.calls) > 0 && functions[e.calls[len(e.calls)-1]]
	if over != ranged || over != (kind == "counter") {
		e.fault("%s is a %s: counters are asked for their rate over a time, gauges as they are", name, kind)
	}
}

// selectors parses label="value", ... up to the brace.
func (e *expression) selectors(name string) {
	for e.at < len(e.tokens) {
		label, sign, value := e.next(), e.next(), strings.Trim(e.next(), `"`)
		match, err := regexp.Compile("^(?:" + value + ")$")
		if err != nil || sign != "=" && sign != "=~" && sign != "!=" && sign != "!~" {
			e.fault("%s%s%q cannot be read", label, sign, value)
			return
		}
		e.selects(name, label, sign, value, match)
		if e.next() == "}" {
			return
		}
	}
}

func (e *expression) selects(name, label, sign, value string, match *regexp.Regexp) {
	have := e.labels[name][label]
	switch {
	case slices.Contains(everywhere, label):
		return
	case have == nil:
		e.fault("%s has no label %s", name, label)
		return
	case slices.Contains(open, label):
		return
	}
	wanted := []string{value}
	if strings.HasSuffix(sign, "~") {
		wanted = strings.Split(value, "|")
	}
	for _, w := range wanted {
		if !have[w] && !(strings.ContainsAny(w, ".*+") && matchesAny(match, have)) {
			e.fault("%s is never %q at %s", label, w, name)
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

// TestExpressions checks that faults of an expression are detected.
func TestExpressions(t *testing.T) {
	t.Parallel()
	p := scraped(t)
	for expr, want := range map[string]string{
		`ferry_bound > 0.8 * ferry_max_allocations`:                                        "",
		`sum by (reason) (rate(ferry_drops_total{reason=~"mac|seal"}[5m]))`:                "",
		`histogram_quantile(0.5, sum by (le) (rate(ferry_receive_batch_size_bucket[5m])))`: "",
		`sum by (call) (rate(ferry_http_requests_total{status=~"5.."}[5m]))`:               "",
		`rate(ferry_stalls_total[5m]) > rate(ferry_datagrams_total{direction="in"}[5m])`:   "match no other side",
		`ferry_bonds`:                                     "no page has",
		`rate(ferry_bound[5m])`:                           "is a gauge",
		`ferry_stalls_total`:                              "is a counter",
		`rate(ferry_stalls_total)`:                        "is a counter",
		`rate(ferry_drops_total{reason="max"}[5m])`:       "never",
		`rate(ferry_drops_total{reason=~"mac|sael"}[5m])`: "never",
		`rate(ferry_drops_total{cause="mac"}[5m])`:        "no label",
		`sum by (call) (ferry_bound)`:                     "grouped by",
		`sum(ferry_bound`:                                 "open",
		`sum(ferry_bound))`:                               "too many",
		`smu(ferry_bound)`:                                "not known",
		`ferry_receive_batch_size`:                        "no page has",
		`rate(ferry_stalls_total[5 minutes])`:             "no time",
		`sum(ferry_bound) % 2`:                            "cannot be read",
	} {
		_, faults := p.check(expr)
		if got := strings.Join(faults, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
