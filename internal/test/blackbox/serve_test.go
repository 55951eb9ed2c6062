package blackbox

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const token = "a-secret-of-the-tests"

type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{t, t.TempDir()}
	text := "tokens:\n  - secret: " + token + "\n    project: game\n    environment: test\n    kind: server\n"
	if err := os.WriteFile(filepath.Join(p.dir, "ferry.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p place) settle(lines string) {
	p.t.Helper()
	f, err := os.OpenFile(filepath.Join(p.dir, "ferry.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(lines); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) serve(args ...string) *ferry {
	p.t.Helper()
	f := launch(p.t, append(p.command(), args...)...)
	f.token = token
	return f
}

func (p place) command() []string {
	return []string{"serve", "--config", filepath.Join(p.dir, "ferry.yaml"), "--state-dir", filepath.Join(p.dir, "state")}
}

func (f *ferry) metric(name string) float64 {
	f.t.Helper()
	_, page := f.ask("GET", f.admin+"/metrics", "")
	for line := range strings.Lines(string(page)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return v
		}
	}
	f.t.Fatalf("no metric %s in\n%s", name, page)
	return 0
}

type match struct {
	host, player *enginetest.UTP
	code         string
}

func (f *ferry) match() match {
	f.t.Helper()
	return f.matchBy(enginetest.UTP2, "udp")
}

func (f *ferry) matchBy(v enginetest.Version, connectionType string) match {
	f.t.Helper()
	a, code := f.allocate(4)
	m := match{playBy(f.t, v, connectionType, a), nil, code}
	testkit.Eventually(f.t, "host is bound", m.host.HasStatus(enginetest.Established))
	m.player = playBy(f.t, v, connectionType, f.join(code))
	testkit.Eventually(f.t, "player is bound", m.player.HasStatus(enginetest.Established))
	m.player.Connect()
	testkit.Eventually(f.t, "player is accepted", m.player.HasPeers(1))
	m.talk(f.t, "hello")
	return m
}

func (m match) talk(t *testing.T, content string) {
	t.Helper()
	talk(t, m.player, m.host, content)
	talk(t, m.host, m.player, content)
}

func (m match) close() {
	for _, u := range []*enginetest.UTP{m.host, m.player} {
		u.SetPaused(true)
		u.Inject(append([]byte{0xDA, 0x72, 0, 11}, u.Cred.ID[:]...))
	}
}

// TestCrash: after kill -9 a match goes on, its join code works again when its
// host is back and not before, and ended allocations do not come back.
func TestCrash(t *testing.T) {
	t.Parallel()
	p, udp := newPlace(t), testkit.FreeAddr(t, "udp")
	f := p.serve("--udp", udp)
	m, gone := f.match(), f.match()
	gone.close()
	testkit.Eventually(t, "two have gone", func() bool { return f.metric("ferry_allocations") == 2 })
	m.host.SetPaused(true) // It comes back later than the player.
	f.Crash()

	f = p.serve("--udp", udp)
	if n := f.metric("ferry_state_file_complete"); n != 1 {
		t.Errorf("storing is %v", n)
	}
	join := fmt.Sprintf(`{"joinCode":%q}`, m.code)
	req, _ := http.NewRequest("POST", f.api+"/v1/join", strings.NewReader(join))
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a join for a host that is not back yet: %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if status, _ := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, gone.code)); status != 404 {
		t.Errorf("a join for a host that had gone: %d", status)
	}
	m.host.SetPaused(false)
	testkit.Eventually(t, "the code leads to the host again", func() bool {
		status, _ := f.post("/v1/join", join)
		return status == 200
	})
	testkit.Eventually(t, "the match goes on", func() bool {
		m.host.Send(m.player.Cred.ID, "after the crash")
		time.Sleep(10 * time.Millisecond)
		return m.player.HasReceived(m.host.Cred.ID, "after the crash")()
	})
	m.talk(t, "as before")
	if n := f.metric("ferry_recovery_rebuilt_total"); n != 2 {
		t.Errorf("%v came back, want 2", n)
	}
	if n := f.metric("ferry_recovery_awaited"); n != 0 {
		t.Errorf("%v are awaited", n)
	}
	f.Stop()
}
