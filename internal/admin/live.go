package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

const (
	// liveWithin is how long a worker may be busy with one batch, and how long
	// a probe may be under way. A batch takes microseconds.
	liveWithin = 2 * time.Second
	// lookAgain is the time between two looks at a busy worker.
	lookAgain = 20 * time.Millisecond
)

// live returns nil if the relay answers a probe and no worker is stuck. It
// looks at the workers first, since a stuck one makes some probes fail, and its
// name is the better answer.
func live(ctx context.Context, probe func(context.Context) error, workers func() []engine.WorkerStats) error {
	if err := moving(ctx, workers); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, liveWithin)
	defer cancel()
	return probe(ctx)
}

// moving waits until every worker that was busy at the first look has been
// idle or at a further batch since, and reports the one that was not in time.
func moving(ctx context.Context, workers func() []engine.WorkerStats) error {
	ctx, cancel := context.WithTimeout(ctx, liveWithin)
	defer cancel()
	first := workers()
	busy := stuck(first, first)
	for len(busy) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("admin: workers %v are stuck in one batch: %w", busy, ctx.Err())
		case <-time.After(lookAgain):
		}
		busy = stuck(first, workers())
	}
	return nil
}

// stuck returns the workers that are busy with the same batch in both looks.
func stuck(before, now []engine.WorkerStats) (rows []int) {
	for i := range before {
		if before[i].Busy && now[i].Busy && before[i].Batches == now[i].Batches {
			rows = append(rows, i)
		}
	}
	return rows
}
