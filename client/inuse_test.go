package client_test

import (
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

var long = flag.Bool("long", false, "what takes up to 30 s")

// TestTwoSessionsAtARelay: of two hosts with one allocation one ends, and the other keeps it, also at a relay with its
// budgets of errors.
func TestTwoSessionsAtARelay(t *testing.T) {
	if !*long {
		t.Skip("NOT TESTED: it takes 20 s; make clients does it")
	}
	t.Parallel()
	relay := enginetest.Start(t, engine.Config{})
	cred := relay.Credentials(relay.Host("alice", 2))
	ticket := client.Ticket{Server: cred.Relay, ID: cred.ID, Key: proto.Key(cred.Key), ConnectionData: cred.ConnectionData}
	var sessions [2]*client.Session
	ended := make(chan int, 2)
	for i := range sessions {
		s, err := client.New(client.Config{Ticket: ticket})
		if err != nil {
			t.Fatal(err)
		}
		sessions[i] = s
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := s.Run(t.Context()); errors.Is(err, client.ErrInUse) {
				ended <- i
			}
		}()
		t.Cleanup(func() { _ = s.Close(); <-done })
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	select {
	case i := <-ended:
		t.Logf("session %d ends after %v", i, time.Since(began).Round(time.Millisecond))
		lives := sessions[1-i]
		echoes := lives.Stats().Echoes
		testkit.Eventually(t, "the other one has the endpoint", func() bool { return lives.Stats().Echoes > echoes+3 })
		if err := lives.Err(); err != nil {
			t.Error(err)
		}
	case <-time.After(5 * patience):
		t.Error("both go on")
	}
}
