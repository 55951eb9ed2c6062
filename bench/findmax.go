package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// findStart is the first rate that a search tries, datagrams per second.
const findStart = 10_000

// minBehind is how late 1 % of the datagrams of a short run of a search may
// leave: a scheduler puts a thread aside for so long.
const minBehind = 10 * time.Millisecond

// ErrNoRate is returned by FindMax when the lowest rate that it tries fails too.
var ErrNoRate = errors.New("bench: no rate meets the criterion")

// FindMax looks for the highest rate of an open loop at which a run of
// cfg.Duration meets the criterion, such as that of ParseThresholds("loss<0.1%"),
// within 2 %, all that was due having been sent in time. cfg.Rate is where it
// begins (0 = 10,000/s). A rate has failed when two tries did, and is tried a third
// time when a rate near it has passed; there are at most 40 runs, on one rig,
// without a Baseline unless cfg has one. It returns the run with the highest rate that passed, whose
// Search has the outcome, and every run in order. When only the generator failed
// above that rate, Found.AtLeast is true and the first result's Limit says so:
// the true maximum is higher. Errors are those of Run, and ErrNoRate.
func FindMax(ctx context.Context, cfg Config, d Dialect, criterion []Threshold) (Result, []Result, error) {
	setDefault(&cfg.Rate, findStart)
	setDefault(&cfg.Baseline, -1)
	if cfg.Window != 0 || len(criterion) == 0 || cfg.Shape == ShapeChurn {
		return Result{}, nil, fmt.Errorf("%w: FindMax is for open loops with a criterion, and not for churn", ErrConfig)
	}
	b, res, err := openBed(ctx, cfg, d)
	if err != nil {
		return res, nil, err
	}
	best, all, err := b.findMax(ctx, criterion)
	return best, all, errors.Join(err, b.rig.Close())
}

// findMax makes the runs. One that was interrupted is the last of them, and the
// best only if none had passed.
func (b *bed) findMax(ctx context.Context, criterion []Threshold) (best Result, all []Result, err error) {
	s := newSearch(b.cfg.Rate)
	for !s.done() {
		r, err := b.try(ctx, &s, criterion)
		if r.Version != 0 {
			all = append(all, r)
		}
		if err != nil && s.pass == 0 {
			return r, all, err
		}
		if err != nil {
			best.conclude(s.found("The search was interrupted."))
			return best, all, err
		}
		passed := r.Search.Verdict == TryPassed
		if passed {
			best = r
		}
		if b.cfg.Tried != nil {
			b.cfg.Tried(r)
		}
		s.note(passed, r.Limit, r.LimitReason)
	}
	if s.pass == 0 {
		return Result{}, all, ErrNoRate
	}
	best.conclude(s.found(""))
	return best, all, nil
}

// try makes one run at the rate that the search wants next.
func (b *bed) try(ctx context.Context, s *search, criterion []Threshold) (Result, error) {
	cfg := b.cfg
	cfg.Rate = s.next
	cfg.Name = fmt.Sprintf("%s at %.0f/s", b.cfg.Name, s.next)
	r, err := b.measure(ctx, cfg)
	if r.Version == 0 {
		return r, err
	}
	note := &Search{Criterion: criterionText(criterion), Step: s.step, Try: s.try, Verdict: TryPassed}
	for _, t := range Missed(criterion, &r) {
		note.Missed = append(note.Missed, t.String())
	}
	if !r.keptPace() {
		note.Missed = append(note.Missed, "all sent in time")
	}
	switch {
	case r.Interrupted:
		note.Verdict, note.Missed = TryStopped, nil
	case len(note.Missed) > 0:
		note.Verdict = TryFailed
	}
	r.Search = note
	return r, err
}

// keptPace reports whether the load was what it should be: all that was due was
// sent, and what was sent did not fall behind by more than the precision of the
// search. A generator that sends the rest in the drain offers a lower rate.
func (r *Result) keptPace() bool {
	behind := time.Duration(findWithin * float64(r.Measured))
	return r.Sent == r.Offered && r.Generator.Lag.P99 <= max(behind, minBehind)
}

func criterionText(criterion []Threshold) string {
	var texts []string
	for _, t := range criterion {
		texts = append(texts, t.String())
	}
	return strings.Join(texts, ",")
}

// conclude makes r the best run of a search.
func (r *Result) conclude(f *Found) {
	note := *r.Search
	note.Found = f
	r.Search = &note
	if f.Limit == LimitGenerator {
		r.Limit, r.LimitReason = LimitGenerator, f.Reason
	}
}
