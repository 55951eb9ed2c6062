package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

// TestAwait: an answer that control has given is not lost because the relay has
// stopped since, as it does after a drain that is over at once, nor because the
// caller's time is over.
func TestAwait(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 200 {
		for _, c := range []struct {
			ctx           context.Context
			done, stopped chan struct{}
			want          error
		}{
			{context.Background(), closed, closed, nil},
			{over, closed, make(chan struct{}), nil},
			{over, make(chan struct{}), make(chan struct{}), alloc.ErrUnavailable},
			{context.Background(), make(chan struct{}), closed, alloc.ErrUnavailable},
		} {
			if err := (&Server{stopped: c.stopped}).awaitCall(c.ctx, c.done); !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
		}
	}
}
