package app

import (
	"math"
	"testing"

	"github.com/ferryrelay/ferry/internal/config"
)

// TestSeats: what the settings make of seats, and that few of them never become
// the 0 by which the relay means no limit.
func TestSeats(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		mode             Mode
		seats, percent   int
		allocations, out int
	}{
		{Serve, 0, 100, 1000, 0},
		{Dev, 0, 50, 1000, 0},
		{Serve, 10, 100, 1000, 10},
		{Serve, 10, 150, 1000, 15},
		{Serve, 10, 50, 1000, 5},
		{Serve, 10, 299, 1000, 29},
		{Serve, 1, 50, 1000, 1},
		{Serve, 99, 1, 1000, 1},
		{Serve, math.MaxInt32, 10_000, 1000, math.MaxInt32},
		{Relay, 0, 100, 1000, 1000},
		{Relay, 0, 150, 1000, 1500},
		{Relay, 0, 1, 10, 1},
		{Relay, 20, 150, 1000, 30},
	} {
		a := &App{opts: Options{Mode: x.mode}, maxAllocations: x.allocations}
		if got := a.seats(&config.Config{MaxSeats: x.seats, Overcommit: x.percent}); got != x.out {
			t.Errorf("%v: max_seats %d, overcommit %d of %d allocations make %d seats, want %d",
				x.mode, x.seats, x.percent, x.allocations, got, x.out)
		}
	}
}
