package bench

import "fmt"

// Search is what a run of FindMax was in it.
type Search struct {
	Criterion string     `json:"criterion"` // the conditions, separated by commas
	Step      int        `json:"step"`      // 1 is the first rate that was tried
	Try       int        `json:"try"`       // of this rate, 1 is the first
	Verdict   TryVerdict `json:"verdict"`
	// Missed are the conditions that did not hold.
	Missed []string `json:"missed,omitempty"`

	// Found is the outcome of the search, for the run that FindMax returns as
	// the best; nil for all others.
	Found *Found `json:"found,omitempty"`
}

// TryVerdict says what a run of a search showed.
type TryVerdict string

// The verdicts. A rate has failed when all its tries have.
const (
	TryPassed  TryVerdict = "passed"
	TryFailed  TryVerdict = "failed"
	TryStopped TryVerdict = "interrupted"
)

// Found is the outcome of a search.
type Found struct {
	Rate float64 `json:"rate"` // the highest that passed, datagrams/s
	// AtLeast says that the server's maximum is Rate or more: nothing higher
	// was shown to be too much for it. Reason is a sentence that says why.
	AtLeast bool    `json:"atLeast"`
	Reason  string  `json:"reason"`
	Limit   Limit   `json:"limit"`  // who failed above Rate
	Failed  float64 `json:"failed"` // the lowest rate above it that failed, 0 = none did
	Runs    int     `json:"runs"`
}

const (
	// findWithin is the relative precision at which a search ends.
	findWithin = 0.02
	// findTries is how often a rate has to fail: a virtual machine that was put
	// aside for some milliseconds loses datagrams at any rate.
	findTries = 2
	// findRuns bounds the runs of a search.
	findRuns = 40
	// findCeiling is a rate that no machine of today carries, datagrams/s.
	findCeiling = 1e8
)

// search looks for the highest rate that passes, by doubling and then halving
// the distance to what failed. It never tries a rate below one that passed. A
// rate that failed is checked once more when one near it has passed, and at once
// if it failed before anything had passed: a machine that was busy for some
// seconds fails at any rate, however often it is asked meanwhile.
type search struct {
	next     float64
	pass     float64 // the highest rate that passed, 0 = none yet
	fails    []bound // that failed, all above pass, each lower than the one before it
	step     int     // number of next
	try      int     // of next
	runs     int
	checking bool  // next is the last of fails
	seen     blame // in the tries of next
}

// bound is a rate that failed.
type bound struct {
	rate    float64
	blame   blame
	checked bool // failed again later
	early   bool // nothing had passed before
}

// blame says why a rate failed. That the server failed in one try is proof; that
// the generator did is none.
type blame struct {
	server    bool
	generator string // its reason
}

func newSearch(first float64) search {
	return search{next: min(max(first, 1), findCeiling), step: 1, try: 1}
}

// fail returns the lowest rate that failed, 0 = none yet.
func (s *search) fail() (b bound) {
	if n := len(s.fails); n > 0 {
		b = s.fails[n-1]
	}
	return b
}

// done reports whether there is nothing more to learn, or no more runs.
func (s *search) done() bool {
	fail := s.fail()
	return s.runs >= findRuns || s.pass >= findCeiling ||
		s.pass == 0 && fail.rate > 0 && fail.rate <= 1 ||
		s.near() && fail.checked
}

// near reports whether what passed and what failed are close enough.
func (s *search) near() bool {
	fail := s.fail().rate
	return s.pass > 0 && fail > 0 && fail-s.pass <= findWithin*fail
}

// note takes the outcome of a run at the rate next and chooses that of the next
// run. limit and reason are those of a run that failed.
func (s *search) note(passed bool, limit Limit, reason string) {
	s.runs++
	if passed {
		s.pass = s.next
		if s.checking {
			s.fails = s.fails[:len(s.fails)-1]
		}
		s.move()
		return
	}
	if limit == LimitGenerator {
		s.seen.generator = reason
	} else {
		s.seen.server = true
	}
	if s.try < findTries {
		s.try++
		return
	}
	b := bound{rate: s.next, blame: s.seen, checked: s.checking, early: s.pass == 0}
	if s.checking {
		s.fails[len(s.fails)-1] = b
	} else {
		s.fails = append(s.fails, b)
	}
	s.move()
}

// move goes on to another rate.
func (s *search) move() {
	s.step, s.try, s.seen, s.checking = s.step+1, 1, blame{}, false
	fail := s.fail()
	switch {
	case fail.rate == 0:
		s.next = min(2*s.pass, findCeiling)
	case s.pass == 0:
		s.next = max(fail.rate/4, 1)
	case !fail.checked && (fail.early || s.near()):
		s.next, s.checking, s.seen, s.try = fail.rate, true, fail.blame, findTries+1
	default:
		s.next = (s.pass + fail.rate) / 2
	}
}

// found is the outcome. reason says why the search ended early, "" if it did not.
func (s *search) found(reason string) *Found {
	fail := s.fail()
	f := &Found{Rate: s.pass, Failed: fail.rate, Runs: s.runs, Limit: LimitServer, AtLeast: true, Reason: reason}
	switch {
	case fail.rate == 0:
		f.Limit = LimitNone
	case !fail.blame.server:
		f.Limit = LimitGenerator
	}
	switch {
	case reason != "":
	case f.Limit == LimitNone:
		f.Reason = "No rate failed."
	case f.Limit == LimitGenerator:
		f.Reason = fmt.Sprintf("At %.0f/s the generator was the limit. %s", fail.rate, fail.blame.generator)
	case !s.near():
		f.Reason = fmt.Sprintf("It ended after %d runs; %.0f/s failed.", s.runs, fail.rate)
	default:
		f.AtLeast, f.Reason = false, fmt.Sprintf("%.0f/s failed whenever it was tried.", fail.rate)
	}
	return f
}
