package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func player(t *testing.T, r *enginetest.Relay, v enginetest.Version, res alloc.Reservation) *enginetest.UTP {
	t.Helper()
	return enginetest.Play(t, v, r.Credentials(res))
}

func TestMatch(t *testing.T) {
	for _, v := range []enginetest.Version{enginetest.UTP1, enginetest.UTP2} {
		t.Run(fmt.Sprintf("UTP%d", v), func(t *testing.T) {
			r := enginetest.Start(t, engine.Config{})
			hostRes := r.Host("host", 4)
			host := player(t, r, v, hostRes)
			var players []*enginetest.UTP
			for i := range 3 {
				players = append(players, player(t, r, v, r.Joiner(fmt.Sprint("p", i), hostRes.ID)))
			}
			testkit.Eventually(t, "host is bound", host.HasStatus(enginetest.Established))
			for i, p := range players {
				testkit.Eventually(t, "player is bound", p.HasStatus(enginetest.Established))
				p.Connect()
				testkit.Eventually(t, "player is accepted", p.HasPeers(1))
				p.Send(host.Cred.ID, fmt.Sprint("hello ", i))
				testkit.Eventually(t, "host receives", host.HasReceived(p.Cred.ID, fmt.Sprint("hello ", i)))
				host.Send(p.Cred.ID, fmt.Sprint("welcome ", i))
				testkit.Eventually(t, "player receives", p.HasReceived(host.Cred.ID, fmt.Sprint("welcome ", i)))
			}
			leave(t, r, host, players)
		})
	}
}

func leave(t *testing.T, r *enginetest.Relay, host *enginetest.UTP, players []*enginetest.UTP) {
	t.Helper()
	for _, p := range players {
		p.Leave(host.Cred.ID)
	}
	testkit.Eventually(t, "host has no players", host.HasPeers(0))
	testkit.Eventually(t, "all links are closed", func() bool { return r.Stats().Links == 0 })
	for _, p := range append(players, host) {
		if log := p.Log(); len(log) != 0 {
			t.Errorf("a client's log shows %q", log)
		}
	}
	testkit.Eventually(t, "two DISCONNECTs for each of 3 links are answered", func() bool {
		return r.Stats().Outcomes["disconnected"] >= 6
	})
}

// TestExpiry: a client that falls silent gets ERROR 1 once, its BIND then gets ERROR 4,
// and a joiner whose host has ended gets ERROR 5.
func TestExpiry(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var ended []engine.EndEvent
	r := enginetest.Start(t, engine.Config{
		// So long that a player whose processor is taken away for a while, but not
		// for so long that the relay notices, does not expire as well.
		Timeouts: engine.Timeouts{Idle: 3 * time.Second},
		Hooks:    engine.Hooks{OnEnd: func(e engine.EndEvent) { mu.Lock(); ended = append(ended, e); mu.Unlock() }},
	})
	hostRes := r.Host("host", 4)
	host := player(t, r, enginetest.UTP2, hostRes)
	p := player(t, r, enginetest.UTP2, r.Joiner("p", hostRes.ID))
	testkit.Eventually(t, "both are bound", func() bool { return r.Stats().Bound == 2 })
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))

	// A client that sent only a BIND gets no ERROR 1, since its source may be forged.
	host.Send(p.Cred.ID, "welcome")
	testkit.Eventually(t, "the player received from the host", p.HasReceived(host.Cred.ID, "welcome"))
	host.SetQuiet(true) // It still receives: a PING that overtakes ERROR 1 would get ERROR 3 before.
	testkit.Eventually(t, "the host expires", func() bool { _, err := r.Describe(context.Background(), hostRes.ID); return err != nil })
	testkit.Eventually(t, "the host learns by ERROR 1", host.HasStatus(enginetest.Invalid))
	host.SetQuiet(false)
	p.Send(hostRes.ID, "anybody there?")
	testkit.Eventually(t, "the joiner learns by ERROR 5", func() bool { return slices.Contains(p.Log(), "error 5") })
	host.Inject(enginetest.SignedBind(host.Cred, 99))
	testkit.Eventually(t, "its BIND earns ERROR 4", func() bool { return slices.Contains(host.Log(), "error 4") })
	if log := host.Log(); !slices.Equal(log, []string{"error 1", "error 4"}) {
		t.Errorf("the host's log shows %q", log)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ended) != 1 || ended[0].ID != hostRes.ID || ended[0].Reason != engine.EndExpired || ended[0].Role != alloc.RoleHost {
		t.Errorf("OnEnd got %v", ended)
	}
}
