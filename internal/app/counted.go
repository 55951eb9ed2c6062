package app

import "github.com/ferryrelay/ferry/internal/metrics"

// stats returns the counts of what the terms in force ask for.
func (p *players) stats() (all metrics.Players) {
	t := p.terms.Load()
	if t.trusting {
		st := t.verifier.Stats()
		all.Identity = &st
	}
	if t.admission != nil {
		st := t.admission.Stats()
		all.Admission = &st
	}
	if t.webhooks != nil {
		st := t.webhooks.Stats()
		all.Webhooks = &st
	}
	if p.mode.answers() {
		st := t.guard.Stats()
		all.Quota = &st
	}
	return all
}
