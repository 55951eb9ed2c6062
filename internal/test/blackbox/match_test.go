package blackbox

import (
	"fmt"
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
