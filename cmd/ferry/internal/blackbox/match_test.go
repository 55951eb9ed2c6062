package blackbox

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/enginetest"
)

func play(t *testing.T, v enginetest.Version, a allocation) *enginetest.UTP {
	t.Helper()
	u, err := enginetest.NewUTP(v, a.credentials(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Retry, u.PingPeriod = 300*time.Millisecond, 500*time.Millisecond
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

func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !enginetest.Eventually(cond) {
		t.Fatalf("never happened: %s", what)
	}
}

func is(u *enginetest.UTP, want enginetest.Status) func() bool {
	return func() bool { s, _ := u.State(); return s == want }
}

func has(u *enginetest.UTP, peers int) func() bool {
	return func() bool { _, p := u.State(); return len(p) == peers }
}

func logs(u *enginetest.UTP, line string) func() bool {
	return func() bool { return slices.Contains(u.Log(), line) }
}

// talk sends content from one to the other and waits for it.
func talk(t *testing.T, from, to *enginetest.UTP, content string) {
	t.Helper()
	from.Send(to.Cred.ID, content)
	wait(t, content+" arrives", func() bool {
		return slices.Contains(to.Inbox(), enginetest.Message{From: from.Cred.ID, Content: content})
	})
}

// TestSession is a session of four as both generations of clients play it: from
// the first HTTP call to the last DISCONNECT, with roaming in between.
func TestSession(t *testing.T) {
	t.Parallel()
	for _, v := range []enginetest.Version{enginetest.UTP1, enginetest.UTP2} {
		t.Run(fmt.Sprintf("UTP%d", v), func(t *testing.T) {
			f := dev(t)
			a, code := f.allocate(4)
			host := play(t, v, a)
			wait(t, "host is bound", is(host, enginetest.Established))
			var players []*enginetest.UTP
			for i := range 3 {
				p := play(t, v, f.join(strings.ToLower(code)))
				wait(t, "player is bound", is(p, enginetest.Established))
				p.Connect()
				wait(t, "player is accepted", has(p, 1))
				talk(t, p, host, fmt.Sprint("hello from ", i))
				talk(t, host, p, fmt.Sprint("welcome ", i))
				players = append(players, p)
			}
			if v == enginetest.UTP2 {
				if err := players[0].Roam(); err != nil {
					t.Fatal(err)
				}
				wait(t, "the roamed player has bound again", logs(players[0], "error 3"))
				time.Sleep(50 * time.Millisecond)
				talk(t, players[0], host, "from a new port")
			}
			players[1].Leave(host.Cred.ID)
			wait(t, "the host forgets who left", has(host, 2))
			players[1].Connect()
			wait(t, "a new link by CONNECT_REQUEST after a DISCONNECT", has(players[1], 1))
			talk(t, players[1], host, "back again")
			for _, p := range players {
				p.Leave(host.Cred.ID)
			}
			wait(t, "everybody has left", has(host, 0))
		})
	}
}

// TestFullHost: the player above the limit is rejected.
func TestFullHost(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, code := f.allocate(1)
	host := play(t, enginetest.UTP2, a)
	first, second := play(t, enginetest.UTP2, f.join(code)), play(t, enginetest.UTP2, f.join(code))
	for _, u := range []*enginetest.UTP{host, first, second} {
		wait(t, "bound", is(u, enginetest.Established))
	}
	first.Connect()
	wait(t, "first is accepted", has(first, 1))
	second.Connect()
	wait(t, "second is rejected", logs(second, "limit of players reached"))
}

// TestSilence: after ten seconds of silence, with the real time-outs, a player
// gets ERROR 1; its join code dies with a host; a joiner sees ERROR 5 and 4.
func TestSilence(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, code := f.allocate(4)
	host, p := play(t, enginetest.UTP2, a), play(t, enginetest.UTP2, f.join(code))
	late := play(t, enginetest.UTP2, f.join(code))
	for _, u := range []*enginetest.UTP{host, p, late} {
		wait(t, "bound", is(u, enginetest.Established))
	}
	p.Connect()
	wait(t, "accepted", has(p, 1))
	talk(t, p, host, "hello")
	start := time.Now()
	host.Pause(true)
	wait(t, "the join code dies with its host", func() bool {
		status, answer := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
		return status == 404 && answer["code"] == 15009.0 && answer["detail"] == "join code not found"
	})
	if d := time.Since(start); d < 9500*time.Millisecond {
		t.Errorf("the host ended after %v of silence, before 10 s", d)
	}
	p.Send(host.Cred.ID, "anybody there?")
	wait(t, "the joiner learns by ERROR 5", logs(p, "error 5"))
	late.Connect()
	wait(t, "a CONNECT_REQUEST to it earns ERROR 4", logs(late, "error 4"))
	host.Pause(false)
	wait(t, "the host learns by ERROR 1", func() bool { l := host.Log(); return len(l) > 0 && l[0] == "error 1" })
}

// TestClose: CLOSE ends an allocation at once and silently; repeated it is
// harmless, and from elsewhere it does nothing.
func TestClose(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, code := f.allocate(4)
	host, p := play(t, enginetest.UTP2, a), play(t, enginetest.UTP2, f.join(code))
	wait(t, "bound", func() bool { return is(host, enginetest.Established)() && is(p, enginetest.Established)() })
	p.Connect()
	wait(t, "accepted", has(p, 1))
	bye := append([]byte{0xDA, 0x72, 0, 11}, a.AllocationIDBytes...)

	elsewhere, err := net.Dial("udp", f.udp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	elsewhere.Write(bye)
	p.Inject(bye) // a fellow player, who knows the id
	elsewhere.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := elsewhere.Read(make([]byte, 100)); err == nil {
		t.Errorf("a CLOSE from elsewhere was answered with %d bytes", n)
	}
	talk(t, p, host, "still there")

	host.Pause(true)
	for range 3 {
		host.Inject(bye)
	}
	wait(t, "the join code dies", func() bool {
		status, _ := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
		return status == 404
	})
	p.Send(host.Cred.ID, "anybody there?")
	wait(t, "the joiner learns by ERROR 5", logs(p, "error 5"))
	if log := host.Log(); len(log) != 0 {
		t.Errorf("CLOSE was answered: %q", log)
	}
}

// TestCodeDies: a join code also dies with a host that was never bound.
func TestCodeDies(t *testing.T) {
	t.Parallel()
	f := dev(t, "--bind-timeout", "1s")
	_, code := f.allocate(4)
	f.join(code)
	wait(t, "the code of a host that never bound dies", func() bool {
		status, _ := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
		return status == 404
	})
}

// TestRoamUTP1: a client of the first generation cannot move: its nonce is
// constant. It meets silence at the new port and goes on at its old one.
func TestRoamUTP1(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, _ := f.allocate(4)
	host := play(t, enginetest.UTP1, a)
	wait(t, "bound", is(host, enginetest.Established))
	fresh, err := net.ListenUDP("udp", &net.UDPAddr{IP: f.udp.Addr().AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	old := host.Swap(fresh)
	wait(t, "its PING earns ERROR 3", logs(host, "error 3"))
	host.Inject(enginetest.SignedBind(host.Cred, 0))
	host.Swap(old).Close()
	before := len(host.Log())
	time.Sleep(1200 * time.Millisecond) // two PING periods
	if s, _ := host.State(); s != enginetest.Established || len(host.Log()) != before {
		t.Errorf("at its old port: %s, log %q", s, host.Log())
	}
}
