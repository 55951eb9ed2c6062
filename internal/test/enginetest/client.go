package enginetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/habits"
)

// Connect sends CONNECT_REQUESTs to the host until one is accepted.
func (u *UTP) Connect() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.client.Connect()
}

// Send sends content to a peer.
func (u *UTP) Send(to [16]byte, content string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.client.Relay(u.now(), to, []byte(content))
}

// Leave closes the connection to a peer as the real client does.
func (u *UTP) Leave(peer [16]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.client.Leave(u.now(), peer, false)
	u.client.Connecting = false
}

// SetPaused pauses or resumes the client: an app in the background neither
// sends nor reads.
func (u *UTP) SetPaused(paused bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.paused = paused
}

// SetQuiet stops or resumes the messages that the client sends by its timers. Unlike
// a paused client it reads, and answers.
func (u *UTP) SetQuiet(quiet bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.quiet = quiet
}

// State returns the client's status and its peers.
func (u *UTP) State() (Status, [][16]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return [...]Status{habits.Unbound: NotEstablished, habits.Bound: Established, habits.Failed: Invalid}[u.client.Status],
		slices.Clone(u.client.Peers)
}

// Inbox returns the messages received so far.
func (u *UTP) Inbox() []Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.inbox)
}

// Log returns the lines of the game's log.
func (u *UTP) Log() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.logged)
}

// Binds returns how many BINDs the client has sent, and its next nonce.
func (u *UTP) Binds() (sent int, nonce uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.client.Binds, u.client.Nonce
}

// Violation describes a datagram that no relay may send, or is empty.
func (u *UTP) Violation() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.violation
}

// Play runs a client with short timers until the test ends, and fails the test
// if the relay sent it a datagram that no relay may send.
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

// HasStatus returns a condition: the client has that status.
func (u *UTP) HasStatus(want Status) func() bool {
	return func() bool { s, _ := u.State(); return s == want }
}

// HasPeers returns a condition: the client has so many peers.
func (u *UTP) HasPeers(n int) func() bool {
	return func() bool { _, p := u.State(); return len(p) == n }
}

// HasLogged returns a condition: the game's log has that line.
func (u *UTP) HasLogged(line string) func() bool {
	return func() bool { return slices.Contains(u.Log(), line) }
}

// HasReceived returns a condition: that content came from that peer.
func (u *UTP) HasReceived(from [16]byte, content string) func() bool {
	return func() bool { return slices.Contains(u.Inbox(), Message{from, content}) }
}
