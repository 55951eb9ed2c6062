package alloc

import (
	"crypto/cipher"
	"fmt"
	"math"
	"slices"
	"time"
)

// epochSeconds is the time for which a sealing key is in use: a week.
const epochSeconds = 7 * 24 * 60 * 60

// The epochs that are valid without being retained: two before the current one, so
// that connection data issued just before a rotation still opens, and the next
// one, so that a clock that is set back across a rotation does no harm.
const (
	epochsBefore = 2
	epochsAfter  = 1
)

// epochOf returns the week that t falls in, counted from the Unix epoch. It
// stays at 0 before 1970 and at its maximum from the year 3226 on.
func epochOf(t time.Time) uint16 {
	week := t.Unix() / epochSeconds
	return uint16(min(max(week, 0), math.MaxUint16))
}

// epochKey is the sealing key of one epoch.
type epochKey struct {
	epoch uint16
	aead  cipher.AEAD
}

// keyring is the set of keys that a sealer opens with. It is immutable, so that
// Open reads it without a lock; a rotation replaces it.
type keyring struct {
	current uint16
	keys    []epochKey // current first
}

// find returns the key of epoch, or nil. The ring is short: four keys, and one
// more for each older week in which a live allocation was reserved.
func (r *keyring) find(epoch uint16) cipher.AEAD {
	for i := range r.keys {
		if r.keys[i].epoch == epoch {
			return r.keys[i].aead
		}
	}
	return nil
}

// Retain keeps the key of epoch until [Sealer.Release] was called as often as
// Retain. The relay retains the epoch of each live allocation, which may be older
// than all epochs of a new sealer. The epoch must come from opened claims or the
// relay's own records, never from a datagram that was not authenticated.
func (s *Sealer) Retain(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retained[epoch]++
	if ring := s.keys.Load(); ring.find(epoch) == nil {
		// Derivation depends on nothing but sizes, and NewSealer has tested those.
		// If it failed nevertheless, Open would return false for the epoch.
		_ = s.rotate(ring.current)
	}
}

// Release undoes one Retain of epoch. Without a Retain it does nothing.
func (s *Sealer) Release(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.retained[epoch]; {
	case n > 1:
		s.retained[epoch] = n - 1
	case n == 1:
		delete(s.retained, epoch)
		if current := s.keys.Load().current; !inWindow(epoch, current) {
			_ = s.rotate(current) // derives nothing, see Retain
		}
	}
}

// inWindow reports whether epoch is valid without being retained.
func inWindow(epoch, current uint16) bool {
	ahead := int(epoch) - int(current)
	return -epochsBefore <= ahead && ahead <= epochsAfter
}

// rotate publishes the ring for the current epoch and the retained ones, reusing
// the keys of the previous ring. The caller holds s.mu.
func (s *Sealer) rotate(current uint16) error {
	epochs := []uint16{current}
	for e := int(current) - epochsBefore; e <= int(current)+epochsAfter; e++ {
		if e >= 0 && e <= math.MaxUint16 {
			epochs = append(epochs, uint16(e))
		}
	}
	for e := range s.retained {
		epochs = append(epochs, e)
	}
	slices.Sort(epochs[1:])
	old, ring := s.keys.Load(), &keyring{current: current}
	for _, e := range epochs {
		if ring.find(e) != nil {
			continue
		}
		var aead cipher.AEAD
		if old != nil {
			aead = old.find(e)
		}
		if aead == nil {
			var err error
			if aead, err = s.epochKey(e); err != nil {
				return fmt.Errorf("alloc: sealing key of epoch %d: %w", e, err)
			}
		}
		ring.keys = append(ring.keys, epochKey{epoch: e, aead: aead})
	}
	s.keys.Store(ring)
	return nil
}
