package lab

// flowWindow is how far behind the newest number duplicates are recognised.
const flowWindow = 4096

// flow counts what arrives of one direction of a match. The goroutine of the
// Fleet owns it.
type flow struct {
	unique, duplicates uint64
	next               uint64 // one above the highest number seen
	seen               [flowWindow / 64]uint64
}

// take counts a number, which begins at 0, and reports whether it is new. What
// is older than the window counts as a duplicate.
func (f *flow) take(n uint64) bool {
	for ; f.next <= n; f.next++ {
		if n-f.next >= flowWindow { // A jump over the whole window clears it.
			f.seen = [flowWindow / 64]uint64{}
			f.next = n
		}
		f.seen[f.next%flowWindow/64] &^= 1 << (f.next % 64)
	}
	bit := uint64(1) << (n % 64)
	word := &f.seen[n%flowWindow/64]
	if f.next-n > flowWindow || *word&bit != 0 {
		f.duplicates++
		return false
	}
	*word |= bit
	f.unique++
	return true
}
