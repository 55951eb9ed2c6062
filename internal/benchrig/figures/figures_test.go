package figures

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestUnits(t *testing.T) {
	for _, tc := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Time, 0, "0 ns"}, {Time, 412, "412 ns"}, {Time, 3412.6, "3.41 µs"}, {Time, 999_999, "1.00 ms"},
		{Time, 35_240, "35.2 µs"}, {Time, 143_000, "143 µs"}, {Time, 2.5e9, "2.50 s"}, {Time, 7.2e12, "7,200 s"},
		{Count, 1234567, "1,234,567"}, {Count, -1234, "-1,234"}, {Count, 999, "999"},
		{Rate, 20000, "20,000/s"}, {Rate, 0.5, "0.50/s"}, {Rate, 19995.5, "19,996/s"},
		{Share, 0, "0 %"}, {Share, 0.00025, "0.025 %"}, {Share, 0.5, "50.0 %"}, {Share, 1, "100 %"}, {Share, 1e-7, "1e-05 %"},
		{Bytes, 512, "512 B"}, {Bytes, 23 << 20, "23.0 MiB"}, {Bytes, 5242.88, "5.12 KiB"},
		{Rate, math.NaN(), "–"}, {Time, float64(Lost), "never (lost)"}, {Time, math.Inf(1), "–"},
		{Rate, 0.001, "0.001/s"},
	} {
		if got := tc.unit.Format(tc.v); got != tc.want {
			t.Errorf("%v of unit %d: got %q, want %q", tc.v, tc.unit, got, tc.want)
		}
	}
}

func TestMedian(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, tc := range []struct {
		in   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{nan, inf}, Spread{}},
		{[]float64{3}, Spread{Median: 3, Min: 3, Max: 3, N: 1}},
		{[]float64{5, 1, 3}, Spread{Median: 3, Min: 1, Max: 5, N: 3}},
		{[]float64{4, 1, nan, 2, 9}, Spread{Median: 3, Min: 1, Max: 9, N: 4}},
	} {
		if got := Median(tc.in); got != tc.want {
			t.Errorf("%v: got %v, want %v", tc.in, got, tc.want)
		}
	}
	if got, want := PairedRatio([]float64{1, 2, 0, 4}, []float64{2, 2, 7, 2}), (Spread{Median: 1, Min: 0.5, Max: 2, N: 3}); got != want {
		t.Errorf("paired: got %v, want %v", got, want)
	}
}

// TestInterval: the bounds are those of the tables for the sign test, and enclose the median of the population
// in at least 95 % of many samples, whatever its distribution.
func TestInterval(t *testing.T) {
	for n, low := range map[int]float64{5: 0, 6: 1, 8: 1, 9: 2, 10: 2, 20: 6, 50: 18, 100: 40} {
		var values []float64
		for i := range n {
			values = append(values, float64(n-i))
		}
		high := float64(n+1) - low
		if low == 0 {
			high = 0
		}
		if s := Median(values); s.Low != low || s.High != high {
			t.Errorf("%d values: %v to %v, want %v to %v", n, s.Low, s.High, low, high)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"normal": random.NormFloat64, "skewed": func() float64 { return random.ExpFloat64() - math.Ln2 },
	} {
		held, samples := 0, 4000
		for range samples {
			values := make([]float64, 11)
			for i := range values {
				values[i] = draw()
			}
			if s := Median(values); s.Low <= 0 && s.High >= 0 {
				held++
			}
		}
		if share := float64(held) / float64(samples); share < 0.95 || share > 0.995 {
			t.Errorf("%s: %.3f of the intervals hold the median", name, share)
		}
	}
}
