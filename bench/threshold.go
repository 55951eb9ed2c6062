package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// Threshold is a condition that a Result has to meet, such as p99 < 5ms.
type Threshold struct {
	text  string // as it was written
	name  string // a name of ParseThresholds
	op    string // "<", "<=", ">" or ">="
	value float64
}

// validity is the name of the condition that a run is valid.
const validity = "valid"

// quantities are what the names of thresholds stand for: the value of a result, which is false if it
// was not measured.
var quantities = map[string]struct {
	unit figures.Unit
	of   func(*Result) (value float64, measured bool)
}{
	"mean": {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.withLost(r.Latency.Mean)) }},
	"p50":  {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.P50) }},
	"p90":  {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.P90) }},
	"p99":  {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.P99) }},
	"p999": {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.P999) }},
	"max":  {figures.Time, func(r *Result) (float64, bool) { return measuredTime(r.Latency.withLost(r.Latency.Max)) }},
	"gap": {figures.Time, func(r *Result) (float64, bool) {
		return float64(cmp.Or(r.Gaps, &Gaps{}).Endpoint), r.Gaps != nil
	}},
	"loss":    {figures.Share, func(r *Result) (float64, bool) { return r.LossRatio, r.Offered > 0 }},
	"dup":     {figures.Share, func(r *Result) (float64, bool) { return ratio(r.Duplicated, r.Sent), r.Offered > 0 }},
	"reorder": {figures.Share, func(r *Result) (float64, bool) { return ratio(r.Reordered, r.Sent), r.Offered > 0 }},
	"absent": {figures.Share, func(r *Result) (float64, bool) {
		g := cmp.Or(r.Gaps, &Gaps{})
		return ratio(g.Absent, g.Endpoints), g.Endpoints > 0
	}},
	"misdelivered": {figures.Share, func(r *Result) (float64, bool) { return r.damage(r.Misdelivered) }},
	"corrupt":      {figures.Share, func(r *Result) (float64, bool) { return r.damage(r.Corrupt) }},
	"cpu": {figures.Time, func(r *Result) (float64, bool) {
		return r.Server.PerDatagram, r.Server.Datagrams > 0 && r.Server.IsServer()
	}},
	"delivered": {figures.Rate, func(r *Result) (float64, bool) { return r.DeliveredRate, r.Offered > 0 }},
	"binds":     {figures.Rate, func(r *Result) (float64, bool) { return cmp.Or(r.Binds, &Calls{}).AnsweredRate, r.Binds != nil }},
}

// damage returns how many datagrams were damaged in a way, as a share of those sent.
func (r *Result) damage(n uint64) (share float64, measured bool) {
	return ratio(n, max(r.Sent, 1)), r.Offered > 0 || n > 0
}

func measuredTime(d time.Duration) (float64, bool) { return float64(d), d > 0 }

// ParseThresholds reads conditions separated by commas: a name, one of < <= >
// >=, and a value with its unit. An empty string is no condition.
//
//	mean p50 p90 p99 p999 max  latency, as of time.ParseDuration: p99<5ms; lost ones are infinitely late
//	gap                        longest time without a delivery to an endpoint: gap<1s
//	absent                     share of the endpoints that got nothing at all; idle runs have to meet absent<=0
//	loss                       share of what was offered: loss<0.1%, or loss<0.001
//	dup reorder                share of what was sent: dup<0.1%
//	misdelivered corrupt       share of what was sent; each run has to meet misdelivered<=0 and corrupt<=0
//	cpu                        time of the server per datagram: cpu<3.5us
//	delivered                  datagrams per second: delivered>=100k; k and M are allowed
//	binds                      answered per second: binds>=100k
//	valid                      the run is valid, without a comparison
func ParseThresholds(s string) ([]Threshold, error) {
	var all []Threshold
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" && strings.TrimSpace(s) == "" {
			return nil, nil
		}
		t, err := parseThreshold(part)
		if err != nil {
			return nil, fmt.Errorf("invalid threshold: %q: %w", part, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func parseThreshold(s string) (Threshold, error) {
	if s == validity {
		return Threshold{text: s, name: s}, nil
	}
	at := strings.IndexAny(s, "<>")
	if at < 0 {
		return Threshold{}, errors.New("no < or >")
	}
	op, value := s[at:at+1], s[at+1:]
	if rest, ok := strings.CutPrefix(value, "="); ok {
		op, value = op+"=", rest
	}
	name := strings.TrimSpace(s[:at])
	q, ok := quantities[name]
	if !ok {
		return Threshold{}, fmt.Errorf("no quantity has the name %q", name)
	}
	v, err := parseValue(strings.TrimSpace(value), q.unit)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0) || v < 0) {
		err = errors.New("not a finite value from 0 up")
	}
	return Threshold{text: s, name: name, op: op, value: v}, err
}

func parseValue(s string, unit figures.Unit) (float64, error) {
	switch percent, ok := strings.CutSuffix(s, "%"); {
	case unit == figures.Time:
		d, err := time.ParseDuration(s)
		return float64(d), err
	case unit == figures.Rate:
		return parseRate(s)
	case ok:
		v, err := strconv.ParseFloat(strings.TrimSpace(percent), 64)
		return v / 100, err
	}
	return strconv.ParseFloat(s, 64)
}

func parseRate(s string) (float64, error) {
	s = strings.TrimSuffix(s, "/s")
	unit := 1.0
	if rest, ok := strings.CutSuffix(s, "k"); ok {
		s, unit = rest, 1e3
	} else if rest, ok := strings.CutSuffix(s, "M"); ok {
		s, unit = rest, 1e6
	}
	v, err := strconv.ParseFloat(s, 64)
	return v * unit, err
}

// Check returns the text of the value of a result, and whether it meets t. What was not
// measured meets nothing.
func (t Threshold) Check(r *Result) (measured string, ok bool) {
	if t.name == validity {
		return "valid " + strconv.FormatBool(r.Valid), r.Valid
	}
	value, ok := t.check(r)
	if math.IsNaN(value) {
		return "not measured", ok
	}
	return quantities[t.name].unit.Format(value), ok
}

// check is for all conditions but validity.
func (t Threshold) check(r *Result) (value float64, ok bool) {
	value, measured := quantities[t.name].of(r)
	if !measured {
		value = math.NaN()
	}
	switch t.op {
	case "<":
		ok = value < t.value
	case "<=":
		ok = value <= t.value
	case ">":
		ok = value > t.value
	case ">=":
		ok = value >= t.value
	}
	return value, ok
}

// String is the threshold as it was written.
func (t Threshold) String() string { return t.text }

// always are conditions that no result may miss: no relay changes datagrams or gives them to others. The
// one of an idle run is that all endpoints are still there.
var always = []Threshold{
	{text: "misdelivered<=0", name: "misdelivered", op: "<="},
	{text: "corrupt<=0", name: "corrupt", op: "<="},
}

var stillThere = Threshold{text: "absent<=0", name: "absent", op: "<="}

// playedAll reports whether what did not arrive is not the generator's fault, as it may be in a valid run or in
// one in which it was late.
func (r *Result) playedAll() bool {
	return !r.Interrupted && r.Generator.Drops+r.SendFailed+r.Unsent == 0 && r.Generator.Lag.Max < r.Load.Drain/2
}

// Missed returns those of the thresholds that a result does not meet, and those that each has to meet:
// misdelivered<=0, corrupt<=0 and, in the shape idle, absent<=0 if the generator sent and received all.
func Missed(all []Threshold, r *Result) (missed []Threshold) {
	for _, t := range all {
		if _, ok := t.Check(r); !ok {
			missed = append(missed, t)
		}
	}
	own := always
	if r.Load.Shape == shapeIdle && r.playedAll() {
		own = append(slices.Clone(always), stillThere)
	}
	for _, t := range own {
		if v, _ := t.check(r); v > 0 && !slices.Contains(missed, t) {
			missed = append(missed, t)
		}
	}
	return missed
}
