package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/enginetest"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestHooks: each change is events once, in order, and a repeated message is no
// change.
func TestHooks(t *testing.T) {
	var mu sync.Mutex
	var events []string
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf(format, args...))
	}
	r := enginetest.Start(t, engine.Config{Hooks: engine.Hooks{
		OnReserve: func(e engine.ReserveEvent) {
			tell("reserve %v %v %v %v", e.ID, e.Role, e.Tenant == enginetest.Tenant.Hash(), e.MaxConnections)
		},
		OnBind:       func(e engine.BindEvent) { tell("bind %v %v %v", e.ID, e.Role, e.First) },
		OnConnect:    func(e engine.ConnectEvent) { tell("connect %v %v", e.Host, e.Joiner) },
		OnDisconnect: func(e engine.DisconnectEvent) { tell("disconnect %v %v", e.From, e.To) },
		OnEnd:        func(e engine.EndEvent) { tell("end %v %v %v", e.ID, e.Role, e.Reason) },
	}})
	hostRes := r.Host("host", 4)
	joinRes := r.Joiner("p", hostRes.ID)
	host := player(t, r, enginetest.UTP2, hostRes)
	testkit.Eventually(t, "host is bound", host.HasStatus(enginetest.Established))
	p := player(t, r, enginetest.UTP2, joinRes)
	testkit.Eventually(t, "player is bound", p.HasStatus(enginetest.Established))
	p.Inject(enginetest.SignedBind(p.Cred, 50)) // the same endpoint: no change
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))
	p.Connect()
	p.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 9}, joinRes.ID[:], hostRes.ID[:]))
	testkit.Eventually(t, "left", func() bool { return r.Stats().Links == 0 })
	p.SetPaused(true)
	p.Inject(append([]byte{0xDA, 0x72, 0, 11}, joinRes.ID[:]...))
	testkit.Eventually(t, "closed", func() bool { return r.Stats().Allocations == 1 })
	want := []string{
		fmt.Sprintf("reserve %v host true 4", hostRes.ID),
		fmt.Sprintf("reserve %v joiner true 0", joinRes.ID),
		fmt.Sprintf("bind %v host true", hostRes.ID),
		fmt.Sprintf("bind %v joiner true", joinRes.ID),
		fmt.Sprintf("connect %v %v", hostRes.ID, joinRes.ID),
		fmt.Sprintf("disconnect %v %v", joinRes.ID, hostRes.ID),
		fmt.Sprintf("end %v joiner closed", joinRes.ID),
	}
	testkit.Eventually(t, "the hooks are events", func() bool { // control counts an end before it tells of it
		mu.Lock()
		defer mu.Unlock()
		return len(events) >= len(want)
	})
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(events, want) {
		t.Errorf("events\n%q\nwant\n%q", events, want)
	}
}
