package engine

import (
	"time"
)

// pacer decides whether a worker sleeps before it receives again, and for how long. At a moderate
// load a wake-up costs more than a datagram, so a short sleep lets several share one. It belongs
// to its worker.
//
// A sleep is possible if it gathers some datagrams, and batches are not large without it: an idle
// relay answers at once, and no sleep precedes the first datagram of a burst. Where a hypervisor
// is involved a timer may cost several wake-ups by a datagram, so the pacer compares the CPU time
// per datagram of periods with and without sleeps.
type pacer struct {
	bound int64 // ns; from the start of a sleep to the end of the next batch; 0: never sleep
	deep  int64 // datagrams in a batch from which it is large

	last  int64 // ns; end of the last batch
	gap   int64 // ns; moving average of the time per datagram, at most 2·bound
	asked int64 // ns; length of the sleep before the current batch; 0: there was none
	over  int64 // ns; moving average of the oversleep and the batch after it

	gain      int64 // moving average of what sleeping saves of the CPU time, per mille
	sleeping  bool  // this period sleeps where that is possible
	possible  bool  // a sleep was possible in this period
	datagrams int64 // of this period
	cpu       int64 // ns; CPU time of the thread at the start of this period
	cost      int64 // ns; CPU time per datagram of the period before; 0: unknown
	periods   int   // until the next trial, at most trialEvery; 0: this is a trial
}

const (
	// gatherAtLeast: fewer save no wake-up.
	gatherAtLeast = 2
	// gatherEnough: more save little, and wait longer.
	gatherEnough = 16
	// pauseBounds is after how many bounds without a datagram the past says nothing.
	pauseBounds = 8
	// payAtLeast is per mille.
	payAtLeast = 100
	// maxGain limits one trial's part of the average: another process may have disturbed it.
	maxGain = 500
	// periodDatagrams is a few dozens of sleeps.
	periodDatagrams = 256
	// trialEvery: one period does the opposite, to learn what that costs now.
	trialEvery = 32
)

func newPacer(bound time.Duration, batchSize int) pacer {
	b := bound.Nanoseconds()
	return pacer{bound: b, deep: int64(batchSize / 2), gap: 2 * b, periods: trialEvery}
}

// delayAfter returns nanoseconds; 0: no sleep.
func (p *pacer) delayAfter(now, n int64) int64 {
	p.observe(now-p.last, n)
	p.last, p.asked = now, 0
	if n >= p.deep || p.gap*gatherAtLeast > p.bound || p.over >= p.bound {
		return 0
	}
	p.possible = true
	if p.sleeping {
		p.asked = max(min(p.bound, p.gap*gatherEnough)-p.over, 1)
	}
	return p.asked
}

func (p *pacer) observe(elapsed, n int64) {
	p.datagrams += n
	if elapsed > pauseBounds*p.bound {
		p.gap = 2 * p.bound
		return
	}
	p.gap += (min(elapsed/n, 2*p.bound) - p.gap) * n / (n + 7)
	if p.asked > 0 && n > 1 { // One alone may have come after the sleep.
		step := p.bound / 32 // So that a rare long oversleep counts little.
		p.over += min(max((elapsed-p.asked-p.over)/8, -step), step)
	}
}

func (p *pacer) isPeriodOver() bool { return p.datagrams >= periodDatagrams }

// The CPU time is that of the thread so far in nanoseconds.
func (p *pacer) nextPeriod(cpu int64) {
	cost := (cpu - p.cpu) / p.datagrams
	if p.periods == 0 {
		p.learn(cost)
		p.periods = trialEvery
	} else if p.possible || p.over >= p.bound {
		p.periods--
	}
	p.sleeping = p.gain >= payAtLeast
	if p.periods == 0 {
		p.sleeping = !p.sleeping
		if p.over >= p.bound {
			p.over = p.bound / 2 // So that this trial sleeps and measures it again.
		}
	}
	p.cost, p.cpu, p.datagrams, p.possible = cost, cpu, 0, false
}

// The trial did the opposite of the period before.
func (p *pacer) learn(cost int64) {
	if cost <= 0 || p.cost <= 0 || !p.possible {
		return
	}
	awake, asleep := p.cost, cost
	if !p.sleeping {
		awake, asleep = cost, p.cost
	}
	gain := min(max((awake-asleep)*1000/awake, -maxGain), maxGain)
	p.gain += (gain - p.gain) / 4
}
