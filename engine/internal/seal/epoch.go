package seal

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

const DefaultEpoch = 7 * 24 * time.Hour

const (
	minEpoch = time.Hour
	maxEpoch = 4 * DefaultEpoch
)

// Epochs that are valid without being retained: two before the current one, so that data issued
// before a rotation still opens, and the next one, so that a clock set back across a rotation does
// no harm.
const (
	epochsBefore = 2
	epochsAfter  = 1
)

// A relay that restarts restores allocations for recoverFor at most. Until then it opens data of
// all epochs that began less than recoverHours before its start, whatever their length; or after
// it, since the clock may have been set back.
const (
	recoverFor   = time.Hour
	recoverHours = int64(maxEpoch / time.Hour)
)

// hourOf returns 0 before 1970.
func hourOf(t time.Time) int64 { return max(t.Unix(), 0) / 3600 }

// epochOf returns the hour at which the epoch of t begins. Its low 16 bits, which recur after
// seven years, identify the key, whatever the length of the epoch.
func (s *Sealer) epochOf(t time.Time) int64 {
	hour := hourOf(t)
	return hour - hour%s.epochHours
}

type epochKey struct {
	epoch uint16
	aead  cipher.AEAD
}

// EpochOf returns the epoch whose key sealed connection data, for [Sealer.Retain].
func EpochOf(d *alloc.ConnectionData) uint16 { return binary.BigEndian.Uint16(d[epochAt:]) }

// keyring is immutable, so that Open reads it without a lock; a rotation replaces it.
type keyring struct {
	current int64      // hour at which the current epoch began
	keys    []epochKey // current first
}

// The ring is short: four keys, and one for each older epoch of a live allocation.
func (r *keyring) find(epoch uint16) cipher.AEAD {
	for i := range r.keys {
		if r.keys[i].epoch == epoch {
			return r.keys[i].aead
		}
	}
	return nil
}

// recoverKey derives each key once.
func (s *Sealer) recoverKey(epoch uint16) cipher.AEAD {
	if epoch-uint16(s.started-recoverHours+1) >= uint16(2*recoverHours-1) || !s.recovering.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovered[epoch] = struct{}{}
	_ = s.rotate(s.keys.Load().current) // see Retain
	return s.keys.Load().find(epoch)
}

// Retain keeps the key of epoch until as many calls of [Sealer.Release]. The relay retains the
// epoch of each live allocation. The epoch must come from opened claims or the relay's own
// records, never from a datagram that was not authenticated.
func (s *Sealer) Retain(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retained[epoch]++
	if ring := s.keys.Load(); ring.find(epoch) == nil {
		// Derivation depends on nothing but sizes, and New has tested those.
		// If it failed nevertheless, Open would return false for the epoch.
		_ = s.rotate(ring.current)
	}
}

// Release without a Retain does nothing.
func (s *Sealer) Release(epoch uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.retained[epoch]; {
	case n > 1:
		s.retained[epoch] = n - 1
	case n == 1:
		delete(s.retained, epoch)
		if current := s.keys.Load().current; !slices.Contains(s.window(current), epoch) {
			_ = s.rotate(current) // derives nothing, see Retain
		}
	}
}

// The current epoch is the first.
func (s *Sealer) window(current int64) []uint16 {
	epochs := []uint16{uint16(current)}
	for i := int64(-epochsBefore); i <= epochsAfter; i++ {
		epochs = append(epochs, uint16(current+i*s.epochHours))
	}
	return epochs
}

// rotate reuses the keys of the previous ring. The caller holds s.mu.
func (s *Sealer) rotate(current int64) error {
	if s.recovering.Load() && !s.now().Before(s.recoverUntil) {
		s.recovering.Store(false)
		clear(s.recovered)
	}
	epochs := s.window(current)
	epochs = slices.AppendSeq(epochs, maps.Keys(s.retained))
	if s.recovering.Load() {
		epochs = slices.AppendSeq(epochs, maps.Keys(s.recovered))
	}
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
				return fmt.Errorf("sealing key of epoch %d: %w", e, err)
			}
		}
		ring.keys = append(ring.keys, epochKey{epoch: e, aead: aead})
	}
	s.keys.Store(ring)
	return nil
}
