package main

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMovement plays a match of 20 players through a relay, over a network that delays, loses,
// repeats and reorders datagrams. game.play compares what the players know at the end with the host.
func TestMovement(t *testing.T) {
	url, stop := relaytest.StartService(httpapi.Token{
		Secret: "move-0123456789abc", Project: "movement", Environment: "test", Server: true,
	})
	t.Cleanup(stop)
	g := game{
		relay:   &api.Client{BaseURL: url, Token: "move-0123456789abc"},
		players: 20, inputs: 200, rate: 60,
		out:     t.Output(),
		network: link.Conditions{Delay: 25 * time.Millisecond, Jitter: 15 * time.Millisecond, Loss: 3, Duplicate: 2, Reorder: 2},
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
	corrected, lost := 0, uint64(0)
	for _, r := range results {
		if r.corrections > 0 {
			corrected++
		}
		lost += r.lost
		for id, at := range r.world {
			if id != r.id && at.distance(r.pos) < 2*radius {
				t.Errorf("players %d and %d are in one place", r.id, id)
			}
		}
	}
	if corrected < g.players-1 {
		t.Errorf("the predictions of only %d players were corrected", corrected)
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
