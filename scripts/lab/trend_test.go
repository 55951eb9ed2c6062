package lab

import (
	"math"
	"testing"
	"time"
)

func TestSlope(t *testing.T) {
	var line, saw []Point
	for i := range 100 {
		at := time.Duration(i) * time.Second
		line = append(line, Point{at, 1000 - 2*float64(i)})
		saw = append(saw, Point{at, float64(i%2) * 100})
	}
	for _, c := range []struct {
		name   string
		points []Point
		want   float64
		within float64
	}{
		{"none", nil, 0, 0},
		{"one", line[:1], 0, 0},
		{"one moment", []Point{{time.Second, 1}, {time.Second, 9}}, 0, 0},
		{"a line that falls by 2 a second", line, -120, 1e-6},
		{"up and down", saw, 0, 5},
	} {
		if got := Slope(c.points, time.Minute); math.Abs(got-c.want) > c.within {
			t.Errorf("%s: %v per minute, want %v", c.name, got, c.want)
		}
	}
}
