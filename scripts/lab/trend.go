package lab

import "time"

// Point is a figure at a time.
type Point struct {
	At    time.Duration
	Value float64
}

// Slope is how much a figure grows in a time, by least squares through all
// points; 0 for fewer than two points in time.
func Slope(points []Point, per time.Duration) float64 {
	var t, v float64
	for _, p := range points {
		t += p.At.Seconds()
		v += p.Value
	}
	n := float64(len(points))
	t, v = t/n, v/n
	var up, over float64
	for _, p := range points {
		d := p.At.Seconds() - t
		up += d * (p.Value - v)
		over += d * d
	}
	if over == 0 {
		return 0
	}
	return up / over * per.Seconds()
}
