package demo

import "sync/atomic"

// tally counts one direction between a player and its host. One goroutine
// receives; any goroutine may read.
type tally struct {
	sent, received, duplicates, strange atomic.Uint64
}

// settled reports whether everything sent so far has arrived.
func (t *tally) settled() bool { return t.received.Load() == t.sent.Load() }

// lost is how many datagrams have not arrived.
func (t *tally) lost() uint64 { return t.sent.Load() - t.received.Load() }

// seen remembers which numbers of one kind have arrived. It belongs to the
// goroutine that receives them.
type seen struct{ words []uint64 }

// first notes a number below limit and reports whether it is new.
func (s *seen) first(number uint32) bool {
	word, bit := int(number/64), uint64(1)<<(number%64)
	for word >= len(s.words) {
		s.words = append(s.words, 0)
	}
	fresh := s.words[word]&bit == 0
	s.words[word] |= bit
	return fresh
}

// count enters one arrival: new, again, or a number that was never sent.
func (t *tally) count(s *seen, number, limit uint32) (fresh bool) {
	switch {
	case number >= limit:
		t.strange.Add(1)
	case s.first(number):
		t.received.Add(1)
		return true
	default:
		t.duplicates.Add(1)
	}
	return false
}
