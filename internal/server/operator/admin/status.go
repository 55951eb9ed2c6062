package admin

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

const (
	// liveTimeout is the maximum time of one batch and of one probe. A batch takes
	// microseconds.
	liveTimeout = 2 * time.Second
	// pollInterval is the interval between two checks of busy workers.
	pollInterval = 20 * time.Millisecond
)

// checkLive returns nil if the relay answers a probe and no worker is stuck. It
// checks the workers first, since a stuck worker makes some probes fail and its index
// is the better error.
func checkLive(ctx context.Context, probe func(context.Context) error, workers func() []privateapi.WorkerStats) error {
	if err := waitForProgress(ctx, workers); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	return probe(ctx)
}

// waitForProgress waits until every worker that was busy in the first sample has been
// idle or has begun another batch. After liveTimeout, its error names the others.
func waitForProgress(ctx context.Context, workers func() []privateapi.WorkerStats) error {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	first := workers()
	busy := stuckWorkers(first, first)
	for len(busy) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("admin: workers %v are stuck in one batch: %w", busy, ctx.Err())
		case <-time.After(pollInterval):
		}
		busy = stuckWorkers(first, workers())
	}
	return nil
}

// stuckWorkers returns the workers that are busy with the same batch in both samples.
func stuckWorkers(before, now []privateapi.WorkerStats) (rows []int) {
	for i := range before {
		if before[i].Busy && now[i].Busy && before[i].Batches == now[i].Batches {
			rows = append(rows, i)
		}
	}
	return rows
}

func listUsage(relay *RelayConfig) func(context.Context, operator.NoQuery) (operator.Usage, error) {
	return func(ctx context.Context, _ operator.NoQuery) (operator.Usage, error) {
		usage := operator.Usage{Since: relay.Since, Projects: []operator.ProjectUsage{}}
		if !relay.UsageSince.IsZero() {
			usage.Since = relay.UsageSince
		}
		all, err := relay.Engine.Usage(ctx)
		for _, u := range all {
			usage.Projects = append(usage.Projects, projectOf(u))
		}
		return usage, err
	}
}

func listPlayerUsage(history History) func(context.Context, operator.PlayersQuery) (operator.PlayersUsage, error) {
	return func(ctx context.Context, q operator.PlayersQuery) (operator.PlayersUsage, error) {
		usage, err := history.PlayerUsage(ctx, q.Project, q.Environment)
		usage.SortAndCut(q.Sort, q.Top)
		return usage, err
	}
}

func projectOf(u engine.Usage) operator.ProjectUsage {
	p := operator.ProjectUsage{
		Project: u.Name.Project, Environment: u.Name.Environment, Others: u.Others,
		Allocations: u.Allocations, Hosts: u.Hosts, Players: u.Players,
		PlayerSeconds: u.PlayerSeconds, Datagrams: u.Datagrams, Bytes: u.Bytes,
	}
	if !u.Others {
		p.Tenant = hex(u.Tenant)
	}
	return p
}

func nonZero(counts map[string]uint64) map[string]uint64 {
	some := maps.Clone(counts)
	maps.DeleteFunc(some, func(_ string, n uint64) bool { return n == 0 })
	return some
}

// StatsOf returns the response of /stats.
func StatsOf(st engine.Stats, now, since time.Time) operator.Stats {
	s := operator.Stats{
		Now: now, Since: since, Allocations: st.Allocations, Bound: st.Bound, Links: st.Links, Seats: st.Seats,
		Draining: st.Draining, Received: st.Received, ReceivedBytes: st.ReceivedBytes,
		Sent: st.Sent, SentBytes: st.SentBytes, SendFailed: st.SendFailed, KernelDrops: st.KernelDrops,
		Outcomes: nonZero(st.Outcomes), Drops: nonZero(st.Drops), UnderLoad: st.Private.WorkersUnderLoad,
		Workers: []uint64{}, Intakes: []uint64{}, FastPath: st.Private.FastPath.Datagrams, StateComplete: st.Private.StateComplete,
	}
	for _, w := range st.Private.Workers {
		if w.Transport != "" {
			s.Intakes = append(s.Intakes, w.Received)
		} else {
			s.Workers = append(s.Workers, w.Received)
		}
	}
	return s
}
