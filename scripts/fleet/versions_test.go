//go:build lab && linux

package fleet

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// baseline is the commit of the other version: the last tag, once there is one.
var baseline = flag.String("fleet.baseline", "3076653", "commit of the version that runs beside this one")

// baselineSettings are what this version derives from others.
var baselineSettings = []string{"FERRY_BEHIND_PROXY=true", "FERRY_SERVER_FAILED_JOINS_PER_MINUTE=1000000000"}

func baselineBinary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "source"), filepath.Join(dir, "ferry")
	for _, args := range [][]string{
		{"git", "-C", "../..", "worktree", "add", "--quiet", "--detach", source, *baseline},
		{"go", "-C", source, "build", "-o", binary, "./cmd/ferry"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("the baseline needs the history of the repository: %v: %v\n%s", args, err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "worktree", "remove", "--force",
		source).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.Chmod(binary, 0o755); err != nil { // The umask may let a group write it, which an upgrade refuses.
		t.Fatal(err)
	}
	return binary
}

// TestFleetVersions upgrades a fleet of the baseline under load, one process after another, in
// both orders, and rolls it back: no call fails, and all matches go on. The matches of a relay
// that restarts resume from the state file that the other version wrote.
func TestFleetVersions(t *testing.T) {
	requireTools(t)
	old := baselineBinary(t)
	b := newTestbed(t)
	now := b.machines.binary
	for _, m := range append(append([]*machine{}, b.apis...), b.relays...) {
		b.runVersion(t, m, old)
	}
	testkit.NoProblemWithin(t, waitTimeout, "the API nodes list relays of both regions", b.missingRegions)
	*fleetMatches = min(*fleetMatches, 100)
	b.startPlayers(t)
	defer func() { t.Logf("%d matches\n%s", *fleetMatches, &b.table) }()
	for _, step := range []struct {
		name   string
		binary string
		relays bool // the relays change first
	}{
		{"upgrade, relays first", now, true}, {"roll back, API processes first", old, false},
		{"upgrade, API processes first", now, false}, {"roll back, relays first", old, true},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			change := []func(){
				func() { b.changeRelays(t, step.binary) },
				func() { b.changeAPIs(t, step.binary) },
			}
			if !step.relays {
				change[0], change[1] = change[1], change[0]
			}
			change[0]()
			b.checkVersionsMix(t)
			change[1]()
		}) {
			b.printLogs(t)
			return
		}
	}
	b.checkAllMatches(t)
}

// runVersion replaces a running machine by one of another version, on its files.
func (b *testbed) runVersion(t *testing.T, m *machine, binary string) {
	t.Helper()
	if err := m.Stop(); err != nil {
		t.Fatalf("%s: %v: %s", m.name, err, m.Log())
	}
	m.cfg.Path = binary
	m.cfg.Env = nil
	if binary != b.machines.binary {
		m.cfg.Env = baselineSettings
	}
	b.restart(t, m)
}

// changeRelays replaces one relay after another, and waits until its matches play again.
func (b *testbed) changeRelays(t *testing.T, binary string) {
	for relay, m := range b.relays {
		b.matches.mark(relay)
		restarted := time.Now()
		b.runVersion(t, m, binary)
		b.waitResumed(t, relay, restarted, 0)
		b.waitCodesWork(t, restarted, b.matches.codes(relay), m.name+": join codes that work after the restart")
		b.waitReady(t, relay)
	}
}

func (b *testbed) changeAPIs(t *testing.T, binary string) {
	p := startProbe(probeConfig{balancer: b.balancer, codes: b.matches.codes(), region: eu})
	for _, m := range b.apis {
		b.runVersion(t, m, binary)
		time.Sleep(500 * time.Millisecond)
	}
	calls := p.stop()
	b.checkCalls(t, calls, p.skipped)
}

func (b *testbed) checkVersionsMix(t *testing.T) {
	p := startProbe(probeConfig{balancer: b.balancer, codes: b.matches.codes(), region: eu})
	time.Sleep(time.Second)
	calls := p.stop()
	b.checkCalls(t, calls, p.skipped)
	// A join that names its player has members that the baseline's relays do not know.
	for n, code := range b.matches.codes() {
		err := b.balancer.callWithStallRetry(func(c *api.Client) error {
			_, err := c.JoinFor(t.Context(), api.JoinRequest{JoinCode: code, Player: fmt.Sprintf("player %d", n)})
			return err
		})
		if err != nil {
			t.Fatalf("a join that names its player: %v", err)
		}
	}
	out, err := b.ctl(b.net.apis[0], "nodes")
	if err != nil {
		t.Error(err)
	}
	b.table.addRow(t, "ctl nodes", fmt.Sprintf("\n%s", out))
}
