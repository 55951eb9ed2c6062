package bench

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrThreshold is wrapped by the errors of ParseThresholds.
var ErrThreshold = errors.New("bench: invalid threshold")

// Threshold is a condition that a Result has to meet, such as p99 < 5ms.
type Threshold struct {
	Text  string // as it was written
	Name  string // a name of ParseThresholds
	Op    string // "<", "<=", ">" or ">="
	Value float64
}

// quantity is what a name of a threshold stands for.
type quantity struct {
	parse func(string) (float64, error)
	of    func(*Result) float64
}

// quantityOf returns the meaning of a name.
func quantityOf(name string) (q quantity, ok bool) {
	latency := func(of func(*Latency) time.Duration) quantity {
		return quantity{parseDuration, func(r *Result) float64 { return float64(of(&r.Latency)) }}
	}
	share := func(of func(*Result) uint64) quantity {
		return quantity{parseShare, func(r *Result) float64 { return ratio(of(r), r.Sent) }}
	}
	switch name {
	case "mean":
		return latency(func(l *Latency) time.Duration { return l.Mean }), true
	case "p50":
		return latency(func(l *Latency) time.Duration { return l.P50 }), true
	case "p90":
		return latency(func(l *Latency) time.Duration { return l.P90 }), true
	case "p99":
		return latency(func(l *Latency) time.Duration { return l.P99 }), true
	case "p999":
		return latency(func(l *Latency) time.Duration { return l.P999 }), true
	case "max":
		return latency(func(l *Latency) time.Duration { return l.Max }), true
	case "loss":
		return share(func(r *Result) uint64 { return r.Lost }), true
	case "dup":
		return share(func(r *Result) uint64 { return r.Duplicated }), true
	case "reorder":
		return share(func(r *Result) uint64 { return r.Reordered }), true
	case "cpu":
		return quantity{parseDuration, func(r *Result) float64 { return r.Server.PerDatagram }}, true
	case "delivered":
		return quantity{parseRate, func(r *Result) float64 { return r.DeliveredRate }}, true
	case "moved":
		return quantity{parseDuration, func(r *Result) float64 { return float64(r.control().P99Moved) }}, true
	case "binds":
		return quantity{parseRate, func(r *Result) float64 { return r.control().Binds.AnsweredRate }}, true
	case "allocations":
		return quantity{parseRate, func(r *Result) float64 { return r.control().Allocations.AnsweredRate }}, true
	}
	return quantity{}, false
}

// ParseThresholds reads conditions separated by commas: a name, one of < <= >
// >=, and a value with its unit. An empty string is no condition.
//
//	mean p50 p90 p99 p999 max  latency, as of time.ParseDuration: p99<5ms
//	loss dup reorder           share of what was sent: loss<0.1%, or loss<0.001
//	cpu                        time of the server per datagram: cpu<3.5us
//	delivered                  datagrams per second: delivered>=100k; k and M are allowed
//	moved                      what BINDs and allocations add to the p99: moved<2ms
//	binds allocations          answered per second: binds>=100k
func ParseThresholds(s string) ([]Threshold, error) {
	var all []Threshold
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" && strings.TrimSpace(s) == "" {
			return nil, nil
		}
		t, err := parseThreshold(part)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrThreshold, part, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func parseThreshold(s string) (Threshold, error) {
	at := strings.IndexAny(s, "<>")
	if at < 0 {
		return Threshold{}, errors.New("no < or >")
	}
	op, value := s[at:at+1], s[at+1:]
	if rest, ok := strings.CutPrefix(value, "="); ok {
		op, value = op+"=", rest
	}
	name := strings.TrimSpace(s[:at])
	q, ok := quantityOf(name)
	if !ok {
		return Threshold{}, fmt.Errorf("no quantity has the name %q", name)
	}
	v, err := q.parse(strings.TrimSpace(value))
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0) || v < 0) {
		err = errors.New("not a finite value from 0 up")
	}
	return Threshold{Text: s, Name: name, Op: op, Value: v}, err
}

func parseDuration(s string) (float64, error) {
	d, err := time.ParseDuration(s)
	return float64(d), err
}

func parseShare(s string) (float64, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
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

// control is what the run has, with zeros for what it has not.
func (r *Result) control() (c Control) {
	if r.Control != nil {
		c = *r.Control
	}
	for _, calls := range []**Calls{&c.Binds, &c.Allocations} {
		if *calls == nil {
			*calls = &Calls{}
		}
	}
	return c
}

// Check returns the value that a result has and whether it meets t. What was
// not measured meets nothing: a latency without samples, a share of nothing, or
// the CPU time of no process.
func (t Threshold) Check(r *Result) (value float64, ok bool) {
	q, known := quantityOf(t.Name)
	if !known {
		return 0, false
	}
	value = q.of(r)
	measured := r.Sent > 0
	switch t.Name {
	case "mean", "p50", "p90", "p99", "p999", "max":
		measured = r.Latency.Samples > 0
	case "cpu":
		measured = r.Server.Datagrams > 0
	case "moved":
		measured = r.Control.Compares()
	case "binds":
		measured = r.Control != nil && r.Control.Binds != nil
	case "allocations":
		measured = r.Control != nil && r.Control.Allocations != nil
	}
	switch t.Op {
	case "<":
		ok = value < t.Value
	case "<=":
		ok = value <= t.Value
	case ">":
		ok = value > t.Value
	case ">=":
		ok = value >= t.Value
	}
	return value, ok && measured
}

// String is the threshold as it was written.
func (t Threshold) String() string { return t.Text }

// Missed returns those of the thresholds that a result does not meet.
func Missed(all []Threshold, r *Result) (missed []Threshold) {
	for _, t := range all {
		if _, ok := t.Check(r); !ok {
			missed = append(missed, t)
		}
	}
	return missed
}
