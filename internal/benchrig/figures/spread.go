package figures

import (
	"fmt"
	"math"
	"slices"
)

// Spread is the median, minimum and maximum of some values.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"` // number of values; if 0, all other fields are 0
	// Low and High enclose the median of what the values are a sample of, with a confidence of at
	// least 95 %. They are two of the values, by the sign test: it assumes that values are
	// independent, and no distribution. Fewer than 6 values have none: both are 0.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
}

// Median returns the spread of values. The median of an even number of values
// is the mean of the middle two. NaN and infinite values are ignored.
func Median(values []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	s := Spread{Median: (v[(len(v)-1)/2] + v[len(v)/2]) / 2, Min: v[0], Max: v[len(v)-1], N: len(v)}
	// The median is below the k-th value with the probability that k-1 or fewer of n tosses are
	// heads, and as often above the k-th from the end.
	k, term, tail := 0, math.Pow(0.5, float64(len(v))), 0.0
	for tail += term; 2*tail <= 0.05; tail += term {
		k++
		term *= float64(len(v)-k+1) / float64(k)
	}
	if k > 0 {
		s.Low, s.High = v[k-1], v[len(v)-k]
	}
	return s
}

// PairedRatio returns the spread of b[i]/a[i]. Pairs with a value that is not
// above 0 are ignored. It panics if the lengths differ.
func PairedRatio(a, b []float64) Spread {
	if len(a) != len(b) {
		panic("figures: PairedRatio of lists of different lengths")
	}
	var list []float64
	for i := range a {
		if a[i] > 0 && b[i] > 0 {
			list = append(list, b[i]/a[i])
		}
	}
	return Median(list)
}

// Text returns the median with minimum and maximum.
func (s Spread) Text(u Unit) string {
	switch s.N {
	case 0:
		return Dash
	case 1:
		return u.Format(s.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", u.Format(s.Median), u.Format(s.Min), u.Format(s.Max))
}
