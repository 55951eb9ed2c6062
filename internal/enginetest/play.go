package enginetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// Play runs a client with quick timers until the test ends, and fails the test
// if the relay ever sent it what no relay may send.
func Play(t testing.TB, v Version, cred Credentials) *UTP {
	t.Helper()
	u, err := NewUTP(v, cred)
	if err != nil {
		t.Fatal(err)
	}
	u.Retry, u.PingPeriod = 200*time.Millisecond, 300*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { u.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if v := u.Violation(); v != "" {
			t.Errorf("a client saw %s", v)
		}
	})
	return u
}

// Is returns a condition: the client has that status.
func (u *UTP) Is(want Status) func() bool {
	return func() bool { s, _ := u.State(); return s == want }
}

// HasPeers returns a condition: the client has so many peers.
func (u *UTP) HasPeers(n int) func() bool {
	return func() bool { _, p := u.State(); return len(p) == n }
}

// Logs returns a condition: the game's log shows that line.
func (u *UTP) Logs(line string) func() bool {
	return func() bool { return slices.Contains(u.Log(), line) }
}

// Got returns a condition: that content came from that peer.
func (u *UTP) Got(from [16]byte, content string) func() bool {
	return func() bool { return slices.Contains(u.Inbox(), Message{from, content}) }
}
