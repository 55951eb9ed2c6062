package alloc

import (
	"context"
	"fmt"
	"sync"

	"github.com/ferryrelay/ferry/proto"
)

// turns lets one call at a time settle the join code of a host, so that nobody
// is told a code that another call has not kept yet, and may take back.
type turns struct {
	mu    sync.Mutex // guards taken
	taken map[proto.AllocationID]chan struct{}
}

// take waits until no other call has the host's turn, and returns what gives
// it back; or ErrUnavailable when ctx ends first.
func (t *turns) take(ctx context.Context, host proto.AllocationID) (func(), error) {
	for {
		t.mu.Lock()
		other, busy := t.taken[host]
		if !busy {
			mine := make(chan struct{})
			t.taken[host] = mine
			t.mu.Unlock()
			return func() { t.give(host, mine) }, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
	}
}

func (t *turns) give(host proto.AllocationID, mine chan struct{}) {
	t.mu.Lock()
	delete(t.taken, host)
	t.mu.Unlock()
	close(mine)
}
