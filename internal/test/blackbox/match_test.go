package blackbox

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func play(t *testing.T, v enginetest.Version, a allocation) *enginetest.UTP {
	t.Helper()
	return enginetest.Play(t, v, a.credentials(t))
}

// talk sends content from one to the other and waits for it.
func talk(t *testing.T, from, to *enginetest.UTP, content string) {
	t.Helper()
	from.Send(to.Cred.ID, content)
	testkit.Eventually(t, content+" arrives", to.HasReceived(from.Cred.ID, content))
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
			testkit.Eventually(t, "host is bound", host.HasStatus(enginetest.Established))
			var players []*enginetest.UTP
			for i := range 3 {
				p := play(t, v, f.join(strings.ToLower(code)))
				testkit.Eventually(t, "player is bound", p.HasStatus(enginetest.Established))
				p.Connect()
				testkit.Eventually(t, "player is accepted", p.HasPeers(1))
				talk(t, p, host, fmt.Sprint("hello from ", i))
				talk(t, host, p, fmt.Sprint("welcome ", i))
				players = append(players, p)
			}
			if v == enginetest.UTP2 {
				if err := players[0].ChangePort(); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, "the roamed player binds again", players[0].HasLogged("error 3"))
				// What it relays before that BIND has been taken is dropped.
				testkit.Eventually(t, "from a new port arrives", func() bool {
					players[0].Send(host.Cred.ID, "from a new port")
					time.Sleep(50 * time.Millisecond)
					return host.HasReceived(players[0].Cred.ID, "from a new port")()
				})
			}
			players[1].Leave(host.Cred.ID)
			testkit.Eventually(t, "the host forgets the player that left", host.HasPeers(2))
			testkit.Eventually(t, "a new link by CONNECT_REQUEST after a DISCONNECT", func() bool {
				players[1].Connect()
				if !testkit.Poll(testkit.WaitLimit, players[1].HasPeers(1)) {
					return false
				}
				players[1].Send(host.Cred.ID, "back again")
				if testkit.Poll(time.Second, host.HasReceived(players[1].Cred.ID, "back again")) {
					return true
				}
				// The host's own DISCONNECT, which another worker has read, came after the
				// CONNECT_REQUEST and ended the new link.
				players[1].Leave(host.Cred.ID)
				return false
			})
			for _, p := range players {
				p.Leave(host.Cred.ID)
			}
			testkit.Eventually(t, "all players have left", host.HasPeers(0))
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
		testkit.Eventually(t, "bound", u.HasStatus(enginetest.Established))
	}
	first.Connect()
	testkit.Eventually(t, "first is accepted", first.HasPeers(1))
	second.Connect()
	testkit.Eventually(t, "second is rejected", second.HasLogged("limit of players reached"))
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
		testkit.Eventually(t, "bound", u.HasStatus(enginetest.Established))
	}
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))
	talk(t, p, host, "hello")
	start := time.Now()         // The relay receives from the host after that.
	talk(t, host, p, "welcome") // An endpoint that sent only a BIND gets no ERROR 1.
	host.SetPaused(true)
	died := func() bool {
		status, answer := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
		return status == 404 && answer["code"] == 15009.0 && answer["detail"] == "join code not found"
	}
	// Time in which the relay stood still does not count as silence.
	testkit.Within(t, 40*time.Second, "the join code dies with its host", died)
	// The clock runs since before the last message of the host, and a slow machine adds
	// to it: only an expiry that came too early fails here.
	if d := time.Since(start); d < 9500*time.Millisecond {
		t.Errorf("the host ended after %v of silence, before 10 s", d)
	}
	p.Send(host.Cred.ID, "anybody there?")
	testkit.Eventually(t, "the joiner learns by ERROR 5", p.HasLogged("error 5"))
	late.Connect()
	testkit.Eventually(t, "a CONNECT_REQUEST to it earns ERROR 4", late.HasLogged("error 4"))
	host.SetPaused(false)
	testkit.Eventually(t, "the host learns by ERROR 1", func() bool { l := host.Log(); return len(l) > 0 && l[0] == "error 1" })
}

// TestClose: CLOSE ends an allocation at once and silently; repeated it is
// harmless, and from elsewhere it does nothing.
func TestClose(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, code := f.allocate(4)
	host, p := play(t, enginetest.UTP2, a), play(t, enginetest.UTP2, f.join(code))
	testkit.Eventually(t, "bound", func() bool { return host.HasStatus(enginetest.Established)() && p.HasStatus(enginetest.Established)() })
	p.Connect()
	testkit.Eventually(t, "accepted", p.HasPeers(1))
	bye := append([]byte{0xDA, 0x72, 0, 11}, a.AllocationIDBytes...)

	elsewhere, err := net.Dial("udp", f.udp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	elsewhere.Write(bye)
	p.Inject(bye) // a fellow player, which knows the id
	talk(t, p, host, "still there")
	f.join(code) // The control goroutine is past both CLOSEs.
	// The first answer is that to another version, not one to the CLOSE.
	elsewhere.Write(append([]byte{0xDA, 0x72, 9, 11}, make([]byte, 60)...))
	elsewhere.SetReadDeadline(time.Now().Add(testkit.WaitLimit))
	answer := make([]byte, 100)
	if n, err := elsewhere.Read(answer); err != nil || n != 21 || answer[3] != 12 || answer[20] != 0 {
		t.Errorf("a CLOSE from elsewhere was answered with %x, %v", answer[:n], err)
	}

	host.SetPaused(true)
	for range 3 {
		host.Inject(bye)
	}
	testkit.Eventually(t, "the join code dies", func() bool {
		status, _ := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
		return status == 404
	})
	p.Send(host.Cred.ID, "anybody there?")
	testkit.Eventually(t, "the joiner learns by ERROR 5", p.HasLogged("error 5"))
	if log := host.Log(); len(log) != 0 {
		t.Errorf("CLOSE was answered: %q", log)
	}
}

// TestCodeDies: a join code also dies with a host that was never bound.
func TestCodeDies(t *testing.T) {
	t.Parallel()
	f := dev(t, "--bind-timeout", "5s") // The calls before need some of it.
	_, code := f.allocate(4)
	f.join(code)
	testkit.Eventually(t, "the code of a host that never bound dies", func() bool {
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
	testkit.Eventually(t, "bound", host.HasStatus(enginetest.Established))
	fresh, err := net.ListenUDP("udp", &net.UDPAddr{IP: f.udp.Addr().AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	old := host.SwapSocket(fresh)
	testkit.Eventually(t, "its PING earns ERROR 3", host.HasLogged("error 3"))
	host.Inject(enginetest.SignedBind(host.Cred, 0))
	host.SwapSocket(old).Close()
	// The client reads in order: when a PING from its old port was answered, all that it
	// read at the new one is in its log.
	echoed := func(more int) {
		want := host.Echoes() + more
		testkit.Eventually(t, "PINGs from its old port are answered", func() bool { return host.Echoes() >= want })
	}
	echoed(1)
	before := len(host.Log())
	echoed(3)
	testkit.Eventually(t, "it is bound at its old port", host.HasStatus(enginetest.Established))
	if len(host.Log()) != before {
		t.Errorf("at its old port: log %q", host.Log())
	}
}
