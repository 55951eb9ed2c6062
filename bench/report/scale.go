package report

import (
	"math"
	"slices"
	"strconv"
)

// scale maps values to positions from 0 to 1.
type scale struct {
	lo, hi float64 // ends of the axis; lo < hi
	log    bool
	ticks  []tick
}

// tick is a labelled position on an axis.
type tick struct {
	At    float64 // a value
	Label string
}

// at returns the position of v. It returns false if v is not finite, or not
// positive on a logarithmic scale.
func (s scale) at(v float64) (float64, bool) {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log10(v), math.Log10(lo), math.Log10(hi)
	}
	p := (v - lo) / (hi - lo)
	if math.IsNaN(p) || math.IsInf(p, 0) {
		return 0, false
	}
	return min(max(p, 0), 1), true
}

// extent returns the minimum and maximum of the usable values, and false if
// there are none.
func extent(values []float64, positive bool) (lo, hi float64, ok bool) {
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) || positive && v <= 0 {
			continue
		}
		if !ok {
			lo, hi, ok = v, v, true
		}
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi, ok
}

// logScale returns a scale for positive values with ticks at 1, 2 and 5 times
// powers of ten, or at the powers alone if there would be too many.
func logScale(values []float64, label func(float64) string) scale {
	lo, hi, ok := extent(values, true)
	if !ok {
		lo, hi = 1, 10
	}
	marks := oneTwoFive(lo, hi)
	s := scale{lo: marks[0], hi: marks[len(marks)-1], log: true}
	for i, v := range marks {
		if len(marks) > 8 && i > 0 && i < len(marks)-1 && !powerOfTen(v) {
			continue
		}
		s.ticks = append(s.ticks, tick{v, label(v)})
	}
	return s
}

// oneTwoFive returns the values 1, 2 and 5 times a power of ten that enclose lo
// to hi: at least two.
func oneTwoFive(lo, hi float64) (marks []float64) {
	exp := math.Floor(math.Log10(lo))
	for e := exp; ; e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if v <= lo {
				marks = marks[:0]
			}
			marks = append(marks, v)
			if v > hi && len(marks) > 1 {
				return marks
			}
		}
	}
}

func powerOfTen(v float64) bool {
	e := math.Log10(v)
	return math.Abs(e-math.Round(e)) < 1e-9
}

// linearScale returns a scale that includes lo and hi, with about five ticks.
// An empty range is widened.
func linearScale(lo, hi float64, label func(float64) string) scale {
	if hi <= lo {
		hi = lo + max(1, math.Abs(lo))
	}
	step := niceStep((hi - lo) / 5)
	s := scale{lo: math.Floor(lo/step) * step, hi: math.Ceil(hi/step) * step}
	for i := range 8 { // five steps, and rounding at both ends
		if v := s.lo + float64(i)*step; v <= s.hi+step/2 {
			s.ticks = append(s.ticks, tick{v, label(v)})
		}
	}
	return s
}

// exactScale returns a scale from lo to hi with ticks at round values.
func exactScale(lo, hi float64, label func(float64) string) scale {
	s := linearScale(lo, hi, label)
	s.ticks = slices.DeleteFunc(s.ticks, func(t tick) bool { return t.At < lo || t.At > hi })
	if hi > lo {
		s.lo, s.hi = lo, hi
	}
	return s
}

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(raw float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= raw*0.999 {
			return m * base
		}
	}
	return 10 * base
}

// countNines returns the number of nines of a percentile: 90 is 1, 99 is 2,
// 99.9 is 3. 100 % is the position of the last of n samples.
func countNines(percent float64, samples uint64) float64 {
	last := math.Log10(max(float64(samples), 1))
	if percent >= 100 {
		return last
	}
	return min(max(-math.Log10(1-percent/100), 0), max(last, 0))
}

// ninesScale returns a scale from 0 to most nines, at least 1.
func ninesScale(most float64) scale {
	s := scale{lo: 0, hi: max(most, 1)}
	for _, p := range []float64{50, 90, 99, 99.9, 99.99, 99.999, 99.9999, 99.99999} {
		if at := countNines(p, math.MaxUint64); at <= s.hi+1e-9 {
			s.ticks = append(s.ticks, tick{at, strconv.FormatFloat(p, 'f', -1, 64) + " %"})
		}
	}
	return s
}
