package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/internal/privateapi"
)

func answers(context.Context) error { return nil }

// looks returns workers that change from look to look, and stay at the last.
func looks(rows ...[]privateapi.WorkerStats) func() []privateapi.WorkerStats {
	return func() []privateapi.WorkerStats {
		now := rows[0]
		if len(rows) > 1 {
			rows = rows[1:]
		}
		return now
	}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	idle := privateapi.WorkerStats{Batches: 5}
	busy := privateapi.WorkerStats{Busy: true, Batches: 5}
	next := privateapi.WorkerStats{Busy: true, Batches: 6}
	for _, c := range []struct {
		name  string
		looks [][]privateapi.WorkerStats
		want  string // in the error; empty: none
	}{
		{"idle", [][]privateapi.WorkerStats{{idle, idle}}, ""},
		{"busy, then idle", [][]privateapi.WorkerStats{{busy, idle}, {busy, idle}, {idle, idle}}, ""},
		{"always busy, but moving", [][]privateapi.WorkerStats{{busy}, {next}}, ""},
		{"stuck", [][]privateapi.WorkerStats{{idle, busy}}, "workers [1]"},
		{"all stuck", [][]privateapi.WorkerStats{{busy, busy}}, "workers [0 1]"},
		{"one gets on", [][]privateapi.WorkerStats{{busy, busy}, {next, busy}}, "workers [1]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := checkLive(t.Context(), answers, looks(c.looks...))
			took := time.Since(began)
			switch {
			case c.want == "" && (err != nil || took >= liveTimeout):
				t.Errorf("%s: %v after %v", c.name, err, took)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || took != liveTimeout):
				t.Errorf("%s: %v after %v, want %q after %v", c.name, err, took, c.want, liveTimeout)
			}
		})
	}
}

func TestProbeHasATimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		err := checkLive(t.Context(), silent, looks([]privateapi.WorkerStats{{}}))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != liveTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stuck := looks([]privateapi.WorkerStats{{Busy: true}})
	if err := checkLive(ctx, answers, stuck); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
