package engine

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
)

// Identity is what a relay keeps over a restart, so that clients of the run before can come back.
type Identity struct {
	// Master is the relay's master key, and Relay its id. Required.
	Master alloc.MasterKey
	Relay  alloc.RelayID
	// Boot identifies this run of the process and must differ in each run. With
	// [Config].Handover it is that of the other process. Zero: a random one.
	Boot uint64
	// Epoch is for how long a key that seals connection data is in use, in whole hours from 1 h to
	// 4 weeks. A run with another Epoch opens the same data. Zero: a week.
	Epoch time.Duration
	// Now is the wall clock. Nil: time.Now.
	Now func() time.Time
}

// NewIdentity returns an identity with a random key and id.
func NewIdentity() (Identity, error) {
	relay, err := uuid.NewRandom()
	if err != nil {
		return Identity{}, fmt.Errorf("engine: new relay id: %w", err)
	}
	id := Identity{Relay: alloc.RelayID(relay)}
	rand.Read(id.Master[:])
	return id, nil
}
