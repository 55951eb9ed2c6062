package relaytest

import (
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/storetest"
)

// TestStore checks what [alloc.Store] promises beyond its signatures. Each call of new returns an empty
// store; use t.Cleanup to close it. The tests wait up to 10 s for what Forget drops, and write from several
// goroutines.
func TestStore(t *testing.T, new func(t *testing.T) alloc.Store) {
	storetest.Run(t, new)
}
