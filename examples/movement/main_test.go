package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMovement plays a match of 20 players through a relay, over a network that delays, loses,
// repeats and reorders datagrams. game.play compares what the players know at the end with the host.
func TestMovement(t *testing.T) {
	url, stop := enginetest.StartService(httpapi.Token{
		Secret: "move-0123456789abc", Project: "movement", Environment: "test", Kind: httpapi.KindServer,
	})
	t.Cleanup(stop)
	bad := link.Conditions{Delay: 25 * time.Millisecond, Jitter: 15 * time.Millisecond, Loss: 3, Duplicate: 2, Reorder: 2}
	var mu sync.Mutex // guards sims
	var sims []*link.Simulation
	g := game{
		relay:   &api.Client{BaseURL: url, Token: "move-0123456789abc"},
		players: 20, inputs: 200, rate: 60,
		out: t.Output(),
		wrap: func(l link.Link) (link.Link, error) {
			mu.Lock()
			defer mu.Unlock()
			sim, err := link.NewSimulation(l, link.SimulationConfig{Seed: uint64(len(sims)), In: bad, Out: bad})
			sims = append(sims, sim)
			return sim, err
		},
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // bounds a test that hangs
	defer cancel()
	results, err := g.play(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != g.players {
		t.Fatalf("%d results", len(results))
	}
	// All players meet in the middle, so that all but one are blocked, which no player predicts.
	corrected := 0
	for _, r := range results {
		if r.corrections > 0 {
			corrected++
		}
		for id, at := range r.world {
			if id != r.id && at.distance(r.pos) < 2*radius {
				t.Errorf("players %d and %d are in one place", r.id, id)
			}
		}
	}
	if corrected < g.players-1 {
		t.Errorf("the predictions of only %d players were corrected", corrected)
	}
	var lost uint64
	for _, sim := range sims {
		out, in := sim.Counts()
		lost += out.Lost + in.Lost
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

// TestParse: messages that are too short are errors, and nothing panics.
func TestParse(t *testing.T) {
	full := []byte{1, 0xff, 1, 9}
	for n := range full {
		if _, err := parseInput(full[:n]); (err == nil) != (n >= 3) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if in, err := parseInput(full); err != nil || in != (input{1, -1, true}) {
		t.Errorf("%+v, %v", in, err)
	}
	if states, err := parseSnapshot(full); len(states) != 0 || err != nil {
		t.Errorf("%v, %v", states, err)
	}
}
