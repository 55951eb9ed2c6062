package bench

import (
	"context"
	"errors"
	"testing"
)

// TestSearch finds the highest rate of servers of known capacity.
func TestSearch(t *testing.T) {
	for _, capacity := range []float64{1.5, 37, 9_999, 10_000, 123_456, 3e6} {
		s := search{next: findStart}
		steps := 0
		for ; !s.done() && steps < findSteps; steps++ {
			s.note(s.next <= capacity)
		}
		if s.pass > capacity || s.pass < capacity*(1-2*findWithin) && s.fail > 1 {
			t.Errorf("capacity %v: found %v after %d steps", capacity, s.pass, steps)
		}
		if steps > findSteps-2 {
			t.Errorf("capacity %v: %d steps", capacity, steps)
		}
	}
}

func TestSearchNothingPasses(t *testing.T) {
	s := search{next: findStart}
	steps := 0
	for ; !s.done() && steps < findSteps; steps++ {
		s.note(false)
	}
	if s.pass != 0 || steps > 10 {
		t.Errorf("found %v after %d steps", s.pass, steps)
	}
}

func TestFindMaxRefused(t *testing.T) {
	criterion, err := ParseThresholds("loss<1%")
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{"closed loop": {Window: 1}, "churn": {Shape: ShapeChurn}} {
		if _, _, err := FindMax(context.Background(), cfg, Direct{}, criterion); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := FindMax(context.Background(), Config{}, Direct{}, nil); !errors.Is(err, ErrConfig) {
		t.Errorf("no criterion: %v", err)
	}
}
