package blackbox

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// drains waits until the relay drains, as seen from outside.
func (f *ferry) drains() {
	f.t.Helper()
	testkit.Eventually(f.t, "it drains", func() bool { return f.metric("ferry_draining") == 1 })
	if status, body := f.ask("GET", f.admin+"/readyz", ""); status != 503 || !strings.Contains(string(body), "draining") {
		f.t.Errorf("/readyz: %d %s", status, body)
	}
	if status, answer := f.post("/v1/allocate", `{"maxConnections":4}`); status != 503 {
		f.t.Errorf("a new allocation: %d %v", status, answer)
	}
}

// TestDrainBySignal: SIGTERM lets the match that runs go on, takes a player for
// it, loses nothing, and the process ends by itself when the match has ended.
func TestDrainBySignal(t *testing.T) {
	t.Parallel()
	f := newPlace(t).serve("--drain-timeout", "10m")
	m := f.match()
	f.Signal(syscall.SIGTERM)
	f.drains()
	// No more are under way than a socket has room for, however late its reader is.
	const datagrams, underWay = 300, 50
	for i := range datagrams {
		testkit.Eventually(t, "what was sent before arrives", func() bool {
			return count(m.host, "up ") > i-underWay && count(m.player, "down ") > i-underWay
		})
		m.player.Send(m.host.Cred.ID, fmt.Sprint("up ", i))
		m.host.Send(m.player.Cred.ID, fmt.Sprint("down ", i))
		time.Sleep(time.Millisecond)
	}
	testkit.Eventually(t, "all that was sent in the drain has arrived", func() bool {
		return count(m.host, "up ") == datagrams && count(m.player, "down ") == datagrams
	})
	late := play(t, enginetest.UTP2, f.join(m.code))
	testkit.Eventually(t, "a late player is bound", late.HasStatus(enginetest.Established))
	late.Connect()
	testkit.Eventually(t, "and let in", late.HasPeers(1))
	if status, _ := f.ask("DELETE", f.admin+"/drain", ""); status != 409 {
		t.Errorf("a drain that a signal began was undone: %d", status)
	}
	const state = `{"draining":true,"final":true,"deadline":"20` // and the rest of the time
	_, body := f.ask("GET", f.admin+"/drain", "")
	if !strings.HasPrefix(string(body), state) || !strings.Contains(string(body), `"allocations":3`) {
		t.Errorf("state %s", body)
	}
	m.close()
	match{late, late, ""}.close()
	f.Exits()
}

func count(u *enginetest.UTP, prefix string) (n int) {
	for _, m := range u.Inbox() {
		if strings.HasPrefix(m.Content, prefix) {
			n++
		}
	}
	return n
}
