package identity

// Stats are counts of all issuers together since the start, those included that
// are trusted no more.
type Stats struct {
	// Fetches of documents of keys, and how many of them failed.
	Fetches, Failures uint64
	// Documents is how many there are to fetch. Keyless of them were never had;
	// Stale are in force from before, since the last fetch failed.
	Documents, Keyless, Stale int
}

// Stats returns the counts.
func (v *Verifier) Stats() (all Stats) {
	all.Fetches, all.Failures = v.pool.fetches.Load(), v.pool.failures.Load()
	for _, s := range v.sources {
		all.Documents++
		switch {
		case s.current.Load() == nil:
			all.Keyless++
		case s.failing():
			all.Stale++
		}
	}
	return all
}
