package engine_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/enginetest"
)

// player runs a model of a real client until the test ends, and fails the test
// if the relay ever sent it what no relay may send.
func player(t *testing.T, r *enginetest.Relay, v enginetest.Version, res alloc.Reservation) *enginetest.UTP {
	t.Helper()
	return playerWith(t, v, r.Credentials(res))
}

func playerWith(t *testing.T, v enginetest.Version, cred enginetest.Credentials) *enginetest.UTP {
	t.Helper()
	u, err := enginetest.NewUTP(v, cred)
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
			t.Errorf("violation seen by a client: %s", v)
		}
	})
	return u
}

func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !enginetest.Eventually(cond) {
		t.Fatalf("never happened: %s", what)
	}
}

func status(u *enginetest.UTP, want enginetest.Status) func() bool {
	return func() bool { s, _ := u.State(); return s == want }
}

func peers(u *enginetest.UTP, n int) func() bool {
	return func() bool { _, p := u.State(); return len(p) == n }
}

func got(u *enginetest.UTP, from [16]byte, content string) func() bool {
	return func() bool { return slices.Contains(u.Inbox(), enginetest.Message{From: from, Content: content}) }
}

// TestMatch plays a match of both generations of clients: bind, connect, relay
// both ways, leave with two DISCONNECTs.
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
			wait(t, "host is bound", status(host, enginetest.Established))
			for i, p := range players {
				wait(t, "player is bound", status(p, enginetest.Established))
				p.Connect()
				wait(t, "player is accepted", peers(p, 1))
				p.Send(host.Cred.ID, fmt.Sprint("hello ", i))
				wait(t, "host hears", got(host, p.Cred.ID, fmt.Sprint("hello ", i)))
				host.Send(p.Cred.ID, fmt.Sprint("welcome ", i))
				wait(t, "player hears", got(p, host.Cred.ID, fmt.Sprint("welcome ", i)))
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
	wait(t, "host has no players", peers(host, 0))
	wait(t, "all links are closed", func() bool { return r.Stats().Links == 0 })
	for _, p := range append(players, host) {
		if log := p.Log(); len(log) != 0 {
			t.Errorf("a client's log shows %q", log)
		}
	}
	if n := r.Stats().Outcomes[engine.OutDisconnected]; n < 6 {
		t.Errorf("%d DISCONNECTs were answered, want two for each of 3 links", n)
	}
}

// TestRoamUTP2: a 2.x client moves to a new port in the middle of a match and
// goes on there.
func TestRoamUTP2(t *testing.T) {
	r := enginetest.Start(t, engine.Config{})
	hostRes := r.Host("host", 4)
	host := player(t, r, enginetest.UTP2, hostRes)
	p := player(t, r, enginetest.UTP2, r.Joiner("p", hostRes.ID))
	wait(t, "both are bound", func() bool {
		return status(host, enginetest.Established)() && status(p, enginetest.Established)()
	})
	p.Connect()
	wait(t, "player is accepted", peers(p, 1))
	for i := range 5 {
		if err := p.Roam(); err != nil {
			t.Fatal(err)
		}
		content := fmt.Sprint("from port ", i)
		wait(t, "host hears the player from its new port", func() bool {
			p.Send(host.Cred.ID, content)
			time.Sleep(10 * time.Millisecond)
			return got(host, p.Cred.ID, content)()
		})
		host.Send(p.Cred.ID, content)
		wait(t, "player hears at its new port", got(p, host.Cred.ID, content))
	}
	if r.Stats().Links != 1 {
		t.Error("the link did not survive")
	}
}

// TestRoamUTP1: a 1.x client, whose nonce is constant, is met with silence at a
// new port, and goes on at its old one.
func TestRoamUTP1(t *testing.T) {
	r := enginetest.Start(t, engine.Config{})
	host := player(t, r, enginetest.UTP1, r.Host("host", 4))
	wait(t, "host is bound", status(host, enginetest.Established))
	fresh, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.Addr().Addr(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	old := host.Swap(fresh)
	wait(t, "pings from the new port earn ERROR 3", func() bool { return slices.Contains(host.Log(), "error 3") })
	host.Inject(signed(host.Cred)) // the same BIND again, as 1.x would
	wait(t, "the BIND is refused", func() bool { return r.Stats().Outcomes[engine.DropNonce] > 0 })
	host.Swap(old).Close()
	pongs := r.Stats().Outcomes[engine.OutPong]
	wait(t, "it goes on at its old port", func() bool { return r.Stats().Outcomes[engine.OutPong] > pongs })
	if s, _ := host.State(); s != enginetest.Established {
		t.Errorf("status is %q", s)
	}
}

// TestRejected: the player above the limit learns it, and a place that a
// DISCONNECT frees can be taken.
func TestRejected(t *testing.T) {
	r := enginetest.Start(t, engine.Config{})
	hostRes := r.Host("host", 1)
	host := player(t, r, enginetest.UTP2, hostRes)
	first := player(t, r, enginetest.UTP2, r.Joiner("first", hostRes.ID))
	second := player(t, r, enginetest.UTP2, r.Joiner("second", hostRes.ID))
	wait(t, "all are bound", func() bool { return r.Stats().Bound == 3 })
	first.Connect()
	wait(t, "first is accepted", peers(first, 1))
	second.Connect()
	wait(t, "second is rejected", status(second, enginetest.Invalid))
	first.Leave(host.Cred.ID)
	wait(t, "first has left", func() bool { return r.Stats().Links == 0 })
	third := player(t, r, enginetest.UTP2, r.Joiner("third", hostRes.ID))
	wait(t, "third is bound", status(third, enginetest.Established))
	third.Connect()
	wait(t, "third has the place", peers(third, 1))
	third.Leave(host.Cred.ID)
	wait(t, "third has left", func() bool { return r.Stats().Links == 0 })
	third.Connect()
	wait(t, "third is back by a new link", peers(third, 1))
}

// TestExpiry: who falls silent gets ERROR 1 once, its BIND then earns ERROR 4,
// and a joiner whose host is gone learns it by ERROR 5.
func TestExpiry(t *testing.T) {
	var mu sync.Mutex
	var ended []engine.EndEvent
	r := enginetest.Start(t, engine.Config{
		IdleTimeout: time.Second, HostAloneTimeout: 2 * time.Second,
		Hooks: engine.Hooks{OnEnd: func(e engine.EndEvent) { mu.Lock(); ended = append(ended, e); mu.Unlock() }},
	})
	hostRes := r.Host("host", 4)
	host := player(t, r, enginetest.UTP2, hostRes)
	p := player(t, r, enginetest.UTP2, r.Joiner("p", hostRes.ID))
	wait(t, "both are bound", func() bool { return r.Stats().Bound == 2 })
	p.Connect()
	wait(t, "accepted", peers(p, 1))

	host.Pause(true)
	wait(t, "the host expires", func() bool { _, err := r.Describe(context.Background(), hostRes.ID); return err != nil })
	host.Pause(false)
	wait(t, "the host learns by ERROR 1", status(host, enginetest.Invalid))
	// Its next PING may earn ERROR 3, and its BIND then ERROR 4.
	if log := host.Log(); log[0] != "error 1" || slices.Contains(log[1:], "error 1") {
		t.Errorf("the host's log shows %q", log)
	}
	p.Send(hostRes.ID, "anybody there?")
	wait(t, "the joiner learns by ERROR 5", func() bool { return slices.Contains(p.Log(), "error 5") })
	host.Inject(enginetest.SignedBind(host.Cred, 99))
	wait(t, "its BIND earns ERROR 4", func() bool { return slices.Contains(host.Log(), "error 4") })
	mu.Lock()
	defer mu.Unlock()
	if len(ended) != 1 || ended[0].ID != hostRes.ID || ended[0].Reason != engine.EndExpired || ended[0].Role != alloc.RoleHost {
		t.Errorf("OnEnd was told %v", ended)
	}
}

// signed returns a 1.x client's BIND, nonce 0.
func signed(c enginetest.Credentials) []byte { return enginetest.SignedBind(c, 0) }
