package bench

import (
	"context"
	"errors"
	"fmt"
)

const (
	// findStart is the first rate that a search tries, datagrams per second.
	findStart = 10_000
	// findWithin is the relative precision at which a search ends.
	findWithin = 0.02
	// findSteps bounds the rates that a search tries.
	findSteps = 24
	// findTries is how often a rate has to fail: a virtual machine that was put
	// aside for some milliseconds loses datagrams at any rate.
	findTries = 2
)

// ErrNoRate is returned by FindMax when the lowest rate that it tries fails too.
var ErrNoRate = errors.New("bench: no rate meets the criterion")

// search is a binary search for the highest rate that passes. pass and fail
// are the highest and lowest rates so far that did; 0 = none yet.
type search struct {
	next       float64
	pass, fail float64
}

// done reports whether there is nothing more to learn.
func (s *search) done() bool {
	return s.fail > 0 && (s.fail-s.pass <= findWithin*s.fail || s.fail <= 1)
}

// note takes the outcome of next and chooses the rate after it: doubling or
// quartering until there is one of each, then halving the distance.
func (s *search) note(passed bool) {
	if passed {
		s.pass = s.next
	} else {
		s.fail = s.next
	}
	switch {
	case s.fail == 0:
		s.next = 2 * s.pass
	case s.pass == 0:
		s.next = s.fail / 4
	default:
		s.next = (s.pass + s.fail) / 2
	}
}

// FindMax looks for the highest rate of an open loop at which a run of
// cfg.Duration meets the criterion, such as that of ParseThresholds("loss<0.1%"),
// within 2 %, all that was due having been sent. cfg.Rate is where it begins (0 =
// 10,000/s); a rate counts as failed when it fails twice. All runs use one rig. It returns the run with the
// highest rate that passed, and every run in order. When the generator limited
// the rates above it, the first result's Limit says so: the true maximum is higher.
// Errors are those of Run, and ErrNoRate.
func FindMax(ctx context.Context, cfg Config, d Dialect, criterion []Threshold) (Result, []Result, error) {
	setDefault(&cfg.Rate, findStart)
	if cfg.Window != 0 || len(criterion) == 0 || cfg.Shape == ShapeChurn {
		return Result{}, nil, fmt.Errorf("%w: FindMax is for open loops with a criterion, and not for churn", ErrConfig)
	}
	b, err := openBed(ctx, cfg, d)
	if err != nil {
		return Result{}, nil, err
	}
	best, all, err := b.findMax(ctx, criterion)
	return best, all, errors.Join(err, b.rig.Close())
}

func (b *bed) findMax(ctx context.Context, criterion []Threshold) (best Result, all []Result, err error) {
	s := search{next: b.cfg.Rate}
	limited := ""
	for range findSteps {
		passed := false
		for try := 0; try < findTries && !passed; try++ {
			cfg := b.cfg
			cfg.Rate = s.next
			cfg.Name = fmt.Sprintf("%s at %.0f/s", b.cfg.Name, s.next)
			r, err := b.measure(ctx, cfg)
			if err != nil {
				return best, all, err
			}
			all = append(all, r)
			passed = r.Sent == r.Offered && len(Missed(criterion, &r)) == 0
			switch {
			case passed:
				best = r
			case r.Limit == LimitGenerator:
				limited = r.LimitReason
			default:
				limited = ""
			}
		}
		if s.note(passed); s.done() {
			break
		}
	}
	if best.Sent == 0 {
		return best, all, ErrNoRate
	}
	if limited != "" {
		best.Limit, best.LimitReason = LimitGenerator, fmt.Sprintf("Above %.0f/s: %s", best.Load.Rate, limited)
	}
	return best, all, nil
}
