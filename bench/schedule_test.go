package bench

import (
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// TestSchedule: due times of the first datagrams, in ms after the start.
func TestSchedule(t *testing.T) {
	const ms = 1_000_000
	links := func(groups ...int) (l []benchrig.Link) {
		for _, g := range groups {
			l = append(l, benchrig.Link{Group: g})
		}
		return l
	}
	for _, test := range []struct {
		name  string
		rate  float64
		links []benchrig.Link
		want  []int64
	}{
		{"one flow", 100, links(0), []int64{0, 10, 20, 30}},
		{"even", 100, links(0, 1, 2, 3), []int64{0, 10, 20, 30, 40, 50, 60, 70, 80}},
		{"all at once", 100, links(0, 0, 0, 0), []int64{0, 0, 0, 0, 40, 40, 40, 40, 80}},
		{"by match", 100, links(0, 0, 1, 1), []int64{0, 0, 20, 20, 40, 40, 60, 60, 80}},
		{"slow", 0.5, links(0, 1), []int64{0, 2000, 4000, 6000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const start = 12345
			s := newSchedule(start, test.rate, test.links)
			var got []int64
			for n := range test.want {
				flows := len(test.links)
				got = append(got, (s.due(int64(n/flows), n%flows)-start)/ms)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("due at %v, want %v", got, test.want)
			}
		})
	}
}

// TestScheduleBefore compares the count with counting one by one.
func TestScheduleBefore(t *testing.T) {
	for _, groups := range []int{1, 3, 7} {
		var links []benchrig.Link
		for i := range 21 {
			links = append(links, benchrig.Link{Group: i * groups / 21})
		}
		s := newSchedule(1000, 12_345.6, links)
		for _, end := range []int64{0, 1000, 1001, 50_000, 1_000_000, 1_700_001, 123_456_789} {
			want := uint64(0)
			for n := 0; s.due(int64(n/21), n%21) < end; n++ {
				want++
			}
			if got := s.before(end); got != want {
				t.Errorf("%d groups: %d before %d, want %d", groups, got, end, want)
			}
		}
	}
}

// TestScheduleExact: a second at 100,000/s has 100,000 datagrams, also after an hour.
func TestScheduleExact(t *testing.T) {
	var links []benchrig.Link
	for i := range 400 {
		links = append(links, benchrig.Link{Group: i})
	}
	s := newSchedule(0, 100_000, links)
	for _, sec := range []int64{0, 1, 59, 3599} {
		if n := s.before((sec+1)*1e9) - s.before(sec*1e9); n != 100_000 {
			t.Errorf("second %d has %d datagrams", sec, n)
		}
	}
}
