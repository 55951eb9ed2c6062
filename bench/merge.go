package bench

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ErrMerge says that results are not those of one load on one relay.
var ErrMerge = errors.New("bench: results cannot be merged")

// maxStartSpread is how far apart the measured intervals of merged results may begin.
const maxStartSpread = 100 * time.Millisecond

// Merge returns the results of generators that loaded one relay at the same time, see
// Config.Generator.StartAt, as those of one. Counts and rates add up; quantiles are those of all
// samples. Gaps and other times are the longest of any generator. Counters of a machine count once for
// each machine. The result is valid if all are, and if they began within 100 ms of each other.
//
// Merge returns [ErrMerge] with the reasons if the loads differ in more than their number of
// endpoints and their rate, or cannot be merged.
func Merge(all ...Result) (Result, error) {
	if reasons := mergeObstacles(all); len(reasons) > 0 {
		return Result{}, fmt.Errorf("%w: %s", ErrMerge, strings.Join(reasons, "; "))
	}
	var r Result
	if err := mergeInto(&r, all, ""); err != nil {
		return Result{}, err
	}
	if others := slices.DeleteFunc(slices.Clone(all), func(o Result) bool { return o.Name == r.Name }); len(others) > 0 {
		r.Name = fmt.Sprintf("%s and %d more", r.Name, len(others))
	}
	r.Generators, r.Valid = 0, true
	latest := r.Started
	for i, o := range all {
		r.Generators += max(o.Generators, 1)
		r.Valid = r.Valid && o.Valid
		if o.Started.Before(r.Started) {
			r.Started = o.Started
		}
		if o.Started.After(latest) {
			latest = o.Started
		}
		for _, c := range o.Causes {
			if c.Limit != LimitServer {
				r.Causes = append(r.Causes, Cause{c.Limit, fmt.Sprintf("Generator %d of %d: %s", i+1, len(all), c.Reason)})
			}
		}
	}
	if spread := latest.Sub(r.Started); spread > maxStartSpread {
		r.Valid = false
		r.Causes = append(r.Causes, Cause{LimitGenerator, fmt.Sprintf("The generators began up to %v apart.", roundDigits(spread))})
	}
	if err := r.mergeMachines(all); err != nil {
		return Result{}, err
	}
	r.computeRatios()
	r.addServerCauses()
	return r, nil
}

func mergeObstacles(all []Result) (reasons []string) {
	if len(all) == 0 {
		return []string{"there are none"}
	}
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	first := &all[0]
	for i := range all {
		o := &all[i]
		if o.Search != nil {
			add("result %d is of a search for the highest rate", i+1)
		}
		for _, p := range []struct{ name, a, b string }{
			{"version", fmt.Sprint(first.Version), fmt.Sprint(o.Version)}, {"dialect", first.Dialect, o.Dialect},
			{"commit", first.Commit, o.Commit}, {"limits", cmp.Or(first.Limits, o.Limits), cmp.Or(o.Limits, first.Limits)},
		} {
			if p.a != p.b {
				add("%s is %q and %q", p.name, p.a, p.b)
			}
		}
		a, b := reflect.ValueOf(first.Load), reflect.ValueOf(o.Load)
		for _, f := range reflect.VisibleFields(a.Type()) {
			x, y := a.FieldByIndex(f.Index).Interface(), b.FieldByIndex(f.Index).Interface()
			if _, may := f.Tag.Lookup("merge"); !may && !f.Anonymous && !reflect.DeepEqual(x, y) {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				add("%s is %v and %v", strings.TrimSuffix(name, "Ns"), x, y)
			}
		}
		for _, p := range all[:i] {
			if o.Server.PID != 0 && p.Server.PID != 0 && (o.Server.PID != p.Server.PID || o.Machine.ID != p.Machine.ID) {
				add("processes of two servers were measured: %d on machine %s and %d on machine %s", p.Server.PID, p.Machine.ID,
					o.Server.PID, o.Machine.ID)
			}
		}
	}
	return reasons
}

func mergeInto[T any](dst *T, all []T, how string) error {
	var list []reflect.Value
	for i := range all {
		list = append(list, reflect.ValueOf(&all[i]).Elem())
	}
	return mergeValues(reflect.ValueOf(dst).Elem(), list, how)
}

// mergeValues sets dst, which is zero. How is a rule: sum, max, or first, which takes the first
// value that is not zero. Without one, unsigned and floating-point numbers add up, and the
// longest time counts. Slices of structures are merged by their elements' first field. A tag
// merge of a field is its rule; with - it stays zero.
func mergeValues(dst reflect.Value, all []reflect.Value, how string) error {
	switch x := dst.Addr().Interface().(type) {
	case *Latency:
		return x.merge(all)
	case *Second:
		return x.merge(all)
	case *map[string]uint64:
		for _, v := range all {
			for name, n := range v.Interface().(map[string]uint64) {
				if *x == nil {
					*x = map[string]uint64{}
				}
				(*x)[name] += n
			}
		}
		return nil
	case *time.Duration:
		how = cmp.Or(how, "max")
	case *time.Time, *int, *string, *bool, *[]string:
		how = cmp.Or(how, "first")
	}
	switch k := dst.Kind(); {
	case how == "first":
	case k == reflect.Struct:
		return mergeFields(dst, all, how)
	case k == reflect.Slice:
		return mergeSlices(dst, all, how)
	case k == reflect.Pointer:
		all = slices.DeleteFunc(all, reflect.Value.IsNil)
		if len(all) == 0 {
			return nil
		}
		for i := range all {
			all[i] = all[i].Elem()
		}
		dst.Set(reflect.New(dst.Type().Elem()))
		return mergeValues(dst.Elem(), all, how)
	}
	for _, v := range all {
		switch {
		case how != "first" && dst.CanUint():
			dst.SetUint(fold(dst.Uint(), v.Uint(), how))
		case how != "first" && dst.CanFloat():
			dst.SetFloat(fold(dst.Float(), v.Float(), how))
		case how != "first" && dst.CanInt():
			dst.SetInt(fold(dst.Int(), v.Int(), how))
		case dst.IsZero():
			dst.Set(v)
		}
	}
	return nil
}

func fold[T int64 | uint64 | float64](a, b T, how string) T {
	if how == "max" {
		return max(a, b)
	}
	return a + b
}

func mergeFields(dst reflect.Value, all []reflect.Value, how string) error {
	for n := range dst.NumField() {
		rule := cmp.Or(dst.Type().Field(n).Tag.Get("merge"), how)
		if rule == "-" {
			continue
		}
		var fields []reflect.Value
		for _, v := range all {
			fields = append(fields, v.Field(n))
		}
		if err := mergeValues(dst.Field(n), fields, rule); err != nil {
			return err
		}
	}
	return nil
}

func mergeSlices(dst reflect.Value, all []reflect.Value, how string) error {
	var keys []any
	groups := map[any][]reflect.Value{}
	for _, v := range all {
		for i := range v.Len() {
			key := v.Index(i).Field(0).Interface()
			if groups[key] == nil {
				keys = append(keys, key)
			}
			groups[key] = append(groups[key], v.Index(i))
		}
	}
	dst.Set(reflect.MakeSlice(dst.Type(), len(keys), len(keys)))
	for i, key := range keys {
		if err := mergeValues(dst.Index(i), groups[key], how); err != nil {
			return err
		}
	}
	return nil
}

func addHistogram(to *hdrhistogram.Histogram, text string, samples uint64) error {
	if samples == 0 {
		return nil
	}
	if text == "" {
		return fmt.Errorf("%w: a distribution of %d samples has no histogram", ErrMerge, samples)
	}
	h, err := hdrhistogram.Decode([]byte(text))
	switch {
	case err != nil:
		return fmt.Errorf("%w: histogram: %w", ErrMerge, err)
	case uint64(h.TotalCount()) != samples:
		return fmt.Errorf("%w: a histogram has %d samples instead of %d", ErrMerge, h.TotalCount(), samples)
	case h.LowestTrackableValue() != minLatency || h.HighestTrackableValue() != maxLatency:
		return fmt.Errorf("%w: a histogram is of %d to %d ns instead of %d to %d", ErrMerge,
			h.LowestTrackableValue(), h.HighestTrackableValue(), minLatency, maxLatency)
	}
	to.Merge(h)
	return nil
}

// encodeHistogram returns a histogram in the compressed format of HdrHistogram's version 2, in base64.
func encodeHistogram(h *hdrhistogram.Histogram) string {
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		panic(err) // It writes to memory.
	}
	return string(text)
}

func (l *Latency) merge(all []reflect.Value) error {
	h, lost, series := newHistogram(3), uint64(0), false
	for _, v := range all {
		o := v.Interface().(Latency)
		lost, series = lost+o.Lost, series || o.Series != nil
		if err := addHistogram(h, o.Histogram, o.Samples); err != nil {
			return err
		}
	}
	*l = newLatency(h, lost, series)
	return nil
}

func (s *Second) merge(all []reflect.Value) error {
	h := newHistogram(2)
	for _, v := range all {
		o := v.Interface().(Second)
		s.At, s.Offered, s.Sent, s.Delivered = o.At, s.Offered+o.Offered, s.Sent+o.Sent, s.Delivered+o.Delivered
		if err := addHistogram(h, o.Histogram, o.Delivered); err != nil {
			return err
		}
	}
	if s.Delivered > 0 {
		s.setLatency(h)
		s.Histogram = encodeHistogram(h)
	}
	return nil
}

func (r *Result) mergeMachines(all []Result) error {
	var machines []Machine
	var systems []System
	for i := range all {
		m := all[i].Machine
		if slices.ContainsFunc(machines, func(o Machine) bool { return o.ID == m.ID }) {
			continue
		}
		var here []System
		for _, o := range all[i:] {
			if o.Machine.ID == m.ID {
				here = append(here, o.System)
			}
		}
		var s System
		if err := mergeInto(&s, here, "max"); err != nil {
			return err
		}
		s.OtherRcvbufErrors = s.RcvbufErrors
		for _, o := range here {
			s.OtherRcvbufErrors -= min(s.OtherRcvbufErrors, o.RcvbufErrors-min(o.OtherRcvbufErrors, o.RcvbufErrors))
		}
		machines, systems = append(machines, m), append(systems, s)
	}
	r.Machine = machines[0]
	if len(machines) > 1 {
		slices.SortFunc(machines, func(a, b Machine) int { return strings.Compare(a.ID, b.ID) })
		var ids, models []string
		r.Machine.Cores = 0
		for _, m := range machines {
			ids, models = append(ids, m.ID), append(models, m.CPU)
			r.Machine.Cores += m.Cores
		}
		r.Machine.ID, r.Machine.Host = shortHash(ids...), ""
		r.Machine.CPU = fmt.Sprintf("%d machines: %s", len(machines), strings.Join(slices.Compact(models), ", "))
	}
	if p := &r.Server; p.PID != 0 {
		p.Datagrams = r.Generator.Process.Datagrams
		p.PerDatagram = float64(p.Run) / float64(max(p.Datagrams, 1))
	}
	return mergeInto(&r.System, systems, "sum")
}

func (r *Result) computeRatios() {
	r.LossRatio = lossRatio(r.Delivered, r.Offered)
	r.Generator.Process.PerDatagram = 0
	if n := r.Netcode; n != nil {
		n.Commands.LossRatio, n.Snapshots.LossRatio = lossRatio(n.Commands.Delivered, n.Commands.Sent),
			lossRatio(n.Snapshots.Delivered, n.Snapshots.Sent)
	}
	if c := r.Control; c != nil {
		c.With.LossRatio = lossRatio(c.With.Delivered, c.With.Offered)
		if b := c.Without; b != nil {
			b.LossRatio = lossRatio(b.Delivered, b.Offered)
			b.Server.Datagrams, b.Server.PerDatagram = 0, 0
		}
		c.With.Server.Datagrams, c.With.Server.PerDatagram = 0, 0 // Its own generator's only.
		c.setMoved()
	}
}
