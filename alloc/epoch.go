package alloc

import (
	"crypto/cipher"
	"fmt"
	"math"
	"slices"
	"time"
)

// epochSeconds is how long a sealing key is in use.
const epochSeconds = 7 * 24 * 60 * 60

// The epochs known besides those retained: the two before the present one, so
// that connection data reserved just before a roll-over still opens, and the
// one after it, so that a clock set back across a roll-over does no harm.
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

// keyring is the set of keys that a sealer opens with. It is immutable: Open
// reads it without a lock, a change makes a new one.
type keyring struct {
	current uint16
	keys    []epochKey // current first
}

// find returns the key of epoch, or nil. The ring is short: four keys, and one
// more for each older week in which a live allocation was made.
func (r *keyring) find(epoch uint16) cipher.AEAD {
	for i := range r.keys {
		if r.keys[i].epoch == epoch {
			return r.keys[i].aead
		}
	}
	return nil
}

// Retain keeps epoch until [Sealer.Release] was called as often as Retain was.
// The holder of an allocation retains the epoch of its connection data, which
// may be older than any that a fresh sealer knows. The epoch must come from
// opened claims or the relay's own records, never from an unopened datagram.
func (s *Sealer) Retain(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retained[epoch]++
	if ring := s.keys.Load(); ring.find(epoch) == nil {
		// Deriving depends on nothing but sizes that NewSealer has tried out.
		// If it failed nonetheless, Open would answer false for the epoch.
		_ = s.roll(ring.current)
	}
}

// Release takes one Retain of epoch back. Without a Retain it does nothing.
func (s *Sealer) Release(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.retained[epoch]; {
	case n > 1:
		s.retained[epoch] = n - 1
	case n == 1:
		delete(s.retained, epoch)
		if current := s.keys.Load().current; !inWindow(epoch, current) {
			_ = s.roll(current) // derives nothing, see Retain
		}
	}
}

// inWindow reports whether epoch is known without being retained.
func inWindow(epoch, current uint16) bool {
	ahead := int(epoch) - int(current)
	return -epochsBefore <= ahead && ahead <= epochsAfter
}

// roll publishes the ring for the current epoch and those retained, reusing
// the keys that the old ring has. The caller holds s.mu.
func (s *Sealer) roll(current uint16) error {
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
