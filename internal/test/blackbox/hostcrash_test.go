package blackbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Time limits of TestCrashHost: two fifths of the defaults.
const (
	crashIdle  = 4 * time.Second
	crashHear  = 3 * crashIdle // of a host that sends nothing and receives
	crashAlone = 24 * time.Second
)

type hostCrash struct {
	*ferry
	code    string
	host    *enginetest.UTP
	late    *enginetest.UTP   // it has joined by code, and not connected
	playing []*enginetest.UTP // they send to the host all the time
	at      time.Time
}

// crashHost crashes a host that is alone, or that another player has connected to.
func crashHost(t *testing.T, other bool) *hostCrash {
	t.Helper()
	c := &hostCrash{ferry: newPlace(t).serve("--idle-timeout", crashIdle.String(),
		"--host-alone-timeout", crashAlone.String())}
	a, code := c.allocate(4)
	c.code, c.host = code, play(t, enginetest.UTP2, a)
	testkit.Eventually(t, "the host is bound", c.host.HasStatus(enginetest.Established))
	c.late = c.newcomer()
	if other {
		c.connect()
		talk(t, c.playing[0], c.host, "hello")
	}
	c.at = time.Now()
	c.host.Inject(append(append([]byte{0xDA, 0x72, 0, 2}, a.AllocationIDBytes...), 1, 0)) // The relay receives it after that.
	c.host.SetPaused(true)
	return c
}

func (c *hostCrash) newcomer() *enginetest.UTP {
	c.t.Helper()
	u := play(c.t, enginetest.UTP2, c.join(c.code))
	testkit.Eventually(c.t, "a player is bound", u.HasStatus(enginetest.Established))
	return u
}

func (c *hostCrash) connect() {
	c.t.Helper()
	u := c.newcomer()
	u.Connect()
	testkit.Eventually(c.t, "the player is accepted", u.HasPeers(1))
	c.playing = append(c.playing, u)
}

func (c *hostCrash) beat() {
	for _, u := range c.playing {
		u.Send(c.host.Cred.ID, "heartbeat")
	}
	time.Sleep(50 * time.Millisecond)
}

// ended reports whether the join code has died with its host.
func (c *hostCrash) ended() bool {
	c.t.Helper()
	status, _ := c.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, c.code))
	return status == 404
}

// TestCrashHost: a host that has crashed is still there for players until its
// silence has lasted the limit that is in force. A player that joins before that is
// accepted, and plays with a host that was only away; once the host has ended, the
// join code is unknown, RELAY earns ERROR 5, and CONNECT_REQUEST ERROR 4.
func TestCrashHost(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name            string
		other, newcomer bool          // the newcomer joins after a sixth of crashHear
		limit           time.Duration // 0: the host comes back
	}{
		{"another player plays on", true, true, crashHear},
		{"it was alone, and a player joins", false, true, crashHear},
		{"its player is gone as well", true, false, crashIdle},
		{"it was only away", true, true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := crashHost(t, row.other)
			if row.newcomer {
				for time.Since(c.at) < crashHear/6 {
					c.beat()
				}
				c.connect()
				t.Logf("%v after the crash: join 200, ACCEPTED", time.Since(c.at).Round(time.Millisecond))
			} else {
				c.playing[0].SetPaused(true)
				c.playing = nil
			}
			if row.limit == 0 {
				c.host.SetPaused(false)
				talk(t, c.playing[1], c.host, "are you there?")
				talk(t, c.host, c.playing[1], "yes")
				return
			}
			c.ends(row.limit)
		})
	}
}

// ends waits until the host has ended, and demands what players see before and after.
func (c *hostCrash) ends(limit time.Duration) {
	t := c.t
	t.Helper()
	for !c.ended() {
		if time.Since(c.at) > 60*time.Second {
			t.Fatal("the join code does not die with its host")
		}
		c.beat()
		for _, u := range c.playing {
			if log := u.Log(); len(log) > 0 && !c.ended() {
				t.Fatalf("a player got %q while the code works", log)
			}
		}
	}
	took := time.Since(c.at)
	if took < limit-500*time.Millisecond {
		t.Errorf("the host ended after %v, before its limit of %v", took, limit)
	}
	for _, u := range c.playing {
		testkit.Eventually(t, "RELAY to it earns ERROR 5", func() bool { c.beat(); return u.HasLogged("error 5")() })
	}
	c.late.Connect()
	testkit.Eventually(t, "CONNECT_REQUEST to it earns ERROR 4", c.late.HasLogged("error 4"))
	t.Logf("join 404 %v after the crash, ERROR 5 and ERROR 4 by %v", took.Round(10*time.Millisecond),
		time.Since(c.at).Round(10*time.Millisecond))
}
