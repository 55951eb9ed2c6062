package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
)

// findStart is the first rate that a search tries, datagrams per second.
const findStart = 10_000

// Errors of FindMax.
var (
	// ErrNoRate says that the lowest rate that it tries fails too.
	ErrNoRate = errors.New("bench: no rate meets the criterion")
	// ErrNoValidRun says that none of the first three runs was valid, so that they show nothing about the server.
	ErrNoValidRun = errors.New("bench: no valid run")
)

// FindMax searches for the highest rate of an open loop at which a run meets the
// criterion, such as that of ParseThresholds("loss<0.1%"), and is not limited by the
// generator. The precision is 2 %. The search begins with cfg.Rate (0 = 10,000/s), and has
// at most 40 runs, with one set-up.
//
// FindMax returns the run with the highest rate that passed, and all runs in order. If
// only the generator failed above that rate, Found.AtLeast is true. Errors are those
// of Run, ErrNoRate and ErrNoValidRun.
func FindMax(ctx context.Context, cfg Config, d Dialect, criterion []Threshold) (Result, []Result, error) {
	cfg.Rate = cmp.Or(cfg.Rate, findStart)
	if cfg.Window != 0 || len(criterion) == 0 || cfg.Shape == shapeChurn {
		return Result{}, nil, fmt.Errorf("%w: FindMax is for open loops with a criterion, and not for churn", ErrConfig)
	}
	b, res, err := openTestbed(ctx, cfg, d)
	if err != nil {
		return res, nil, err
	}
	best, all, err := b.findMax(ctx, criterion)
	return best, all, errors.Join(err, b.rig.Close())
}

// findMax has an interrupted run last, and as the best only if none passed.
func (b *testbed) findMax(ctx context.Context, criterion []Threshold) (best Result, all []Result, err error) {
	s, reason, valid := newSearch(b.cfg.Rate), "", false
	for !s.done() {
		var r Result
		if err = ctx.Err(); err == nil || s.pass == 0 { // A run may end before it notices.
			r, err = b.runNext(ctx, &s, criterion)
		}
		if r.Version != 0 {
			all = append(all, r)
		}
		if err != nil && s.pass == 0 {
			return r, all, err
		}
		if err != nil {
			reason = "The search was interrupted."
			break
		}
		passed := r.Search.Verdict == tryPassed
		if passed {
			best = r
		}
		if b.cfg.OnRun != nil {
			b.cfg.OnRun(r)
		}
		s.recordOutcome(passed, r.blame())
		if valid = valid || r.Valid || len(Missed(nil, &r)) > 0; !valid && s.runs == findInvalid {
			return Result{}, all, fmt.Errorf("%w in %d: %s", ErrNoValidRun, s.runs, r.InvalidReason())
		}
	}
	if s.pass == 0 {
		return Result{}, all, ErrNoRate
	}
	note := *best.Search // that of a run in all has no outcome
	note.Found, best.Search = s.found(reason), &note
	return best, all, err
}

func (b *testbed) runNext(ctx context.Context, s *search, criterion []Threshold) (Result, error) {
	cfg := b.cfg
	cfg.Rate = s.next
	cfg.Label.Name += fmt.Sprintf(" at %.0f/s", cfg.Rate)
	r, err := b.measure(ctx, cfg)
	if r.Version == 0 {
		return r, err
	}
	note := &Search{Criterion: strings.Join(texts(criterion), ","), Step: s.step, Try: s.try, Verdict: tryPassed}
	note.Missed = texts(Missed(criterion, &r))
	if r.CausedBy(limitGenerator) {
		note.Missed = append(note.Missed, "all sent in time")
	}
	switch {
	case r.Interrupted:
		note.Verdict, note.Missed = tryStopped, nil
	case len(note.Missed) > 0:
		note.Verdict = tryFailed
	}
	r.Search = note
	return r, err
}

// blame returns what failed in a run that did not pass. What the server lost is proof even
// if the generator was late too, so that no late generator hides it.
func (r *Result) blame() cause {
	c := cause{generator: r.Reasons(limitGenerator)}
	c.server = c.generator == "" || ratio(r.lostByServer()+r.Blocked, r.Sent+r.Blocked) > findLoss
	return c
}

func texts(all []Threshold) (list []string) {
	for _, t := range all {
		list = append(list, t.text)
	}
	return list
}

// Search is the place of a run in the search of FindMax.
type Search struct {
	Criterion string `json:"criterion"` // the conditions, separated by commas
	Step      int    `json:"step"`      // 1 is the first rate that was tried
	Try       int    `json:"try"`       // of this rate, 1 is the first
	Verdict   string `json:"verdict"`   // "passed", "failed" or "interrupted"
	// Missed are the conditions that did not hold.
	Missed []string `json:"missed,omitempty"`

	// Found is the outcome of the search, for the run that FindMax returns as
	// the best; nil for all others. Rate is the highest that passed, Failed the lowest above it that
	// failed, and AtLeast is true if the server's maximum may be higher, for a Reason.
	Found *found `json:"found,omitempty"`
}

// The verdicts of a run of a search.
const (
	tryPassed  = "passed"
	tryFailed  = "failed"
	tryStopped = "interrupted"
)

// found is the outcome of a search.
type found struct {
	Rate float64 `json:"rate"` // the highest that passed, datagrams/s
	// AtLeast is true if the server's maximum may be higher than Rate: no run showed a
	// higher rate to be too high for the server. Reason is a sentence with the reason.
	AtLeast bool    `json:"atLeast"`
	Reason  string  `json:"reason"`
	Limit   string  `json:"limit"`  // the side that failed above Rate
	Failed  float64 `json:"failed"` // the lowest rate above it that failed, 0 = none did
	Runs    int     `json:"runs"`
}

const (
	// findLoss is the share of the datagrams whose loss proves that a rate is too high for
	// the server, whatever the generator did.
	findLoss = 0.001
	// findWithin is the relative precision at which a search ends.
	findWithin = 0.02
	// findTries is how often a rate has to fail: a virtual machine that the hypervisor
	// pauses for some milliseconds loses datagrams at any rate.
	findTries = 2
	// findInvalid is the number of runs of which one has to be valid.
	findInvalid = 3
	// findRuns bounds the runs of a search.
	findRuns = 40
	// findCeiling is a rate above that of any machine, datagrams/s.
	findCeiling = 1e8
)

// search finds the highest rate that passes, by doubling and then halving the distance
// to the lowest rate that failed. It never tries a rate below one that passed. It
// checks a failed rate again when one near it has passed, and at once if it failed
// before any rate had passed: a machine that is busy for some seconds fails at any
// rate in that time.
type search struct {
	next     float64
	pass     float64 // the highest rate that passed, 0 = none yet
	fails    []bound // that failed, all above pass, each lower than the one before it
	step     int     // number of next
	try      int     // of next
	runs     int
	checking bool  // next is the last of fails
	cause    cause // in the tries of next
}

type bound struct {
	rate    float64
	cause   cause
	checked bool // failed again later
	early   bool // nothing had passed before
}

// cause says which side failed at a rate. One failure of the server is proof; a failure of
// the generator is not.
type cause struct {
	server    bool
	generator string // its reason
}

func newSearch(first float64) search {
	return search{next: min(max(first, 1), findCeiling), step: 1, try: 1}
}

func (s *search) fail() (b bound) {
	if n := len(s.fails); n > 0 {
		b = s.fails[n-1]
	}
	return b
}

func (s *search) done() bool {
	fail := s.fail()
	return s.runs >= findRuns || s.pass >= findCeiling ||
		s.pass == 0 && fail.rate > 0 && fail.rate <= 1 ||
		s.near() && fail.checked
}

func (s *search) near() bool {
	fail := s.fail().rate
	return s.pass > 0 && fail > 0 && fail-s.pass <= findWithin*fail
}

// recordOutcome chooses the rate of the next run. why is that of a failed run.
func (s *search) recordOutcome(passed bool, why cause) {
	s.runs++
	if passed {
		s.pass = s.next
		if s.checking {
			s.fails = s.fails[:len(s.fails)-1]
		}
		s.chooseNext()
		return
	}
	s.cause.server = s.cause.server || why.server
	s.cause.generator = cmp.Or(why.generator, s.cause.generator)
	if s.try < findTries {
		s.try++
		return
	}
	b := bound{rate: s.next, cause: s.cause, checked: s.checking, early: s.pass == 0}
	if s.checking {
		s.fails[len(s.fails)-1] = b
	} else {
		s.fails = append(s.fails, b)
	}
	s.chooseNext()
}

func (s *search) chooseNext() {
	s.step, s.try, s.cause, s.checking = s.step+1, 1, cause{}, false
	fail := s.fail()
	switch {
	case fail.rate == 0:
		s.next = min(2*s.pass, findCeiling)
	case s.pass == 0:
		s.next = max(fail.rate/4, 1)
	case !fail.checked && (fail.early || s.near()):
		s.next, s.checking, s.cause, s.try = fail.rate, true, fail.cause, findTries+1
	default:
		s.next = (s.pass + fail.rate) / 2
	}
}

func (s *search) found(reason string) *found {
	fail := s.fail()
	f := &found{Rate: s.pass, Failed: fail.rate, Runs: s.runs, Limit: limitServer, AtLeast: true, Reason: reason}
	switch {
	case fail.rate == 0:
		f.Limit = limitNone
	case !fail.cause.server:
		f.Limit = limitGenerator
	}
	switch {
	case reason != "":
	case f.Limit == limitNone:
		f.Reason = "No rate failed."
	case f.Limit == limitGenerator:
		f.Reason = fmt.Sprintf("At %.0f/s the generator was the limit. %s", fail.rate, fail.cause.generator)
	case !s.near():
		f.Reason = fmt.Sprintf("It ended after %d runs; %.0f/s failed.", s.runs, fail.rate)
	default:
		f.AtLeast, f.Reason = false, fmt.Sprintf("%.0f/s failed whenever it was tried.", fail.rate)
	}
	return f
}
