//go:build lab && linux

package fleet

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// Flags of the long form, which checks all goals.
var (
	binaryFlag   = flag.String("ferry", "", "test this binary; empty builds one")
	long         = flag.Bool("long", false, "decide by goals of time too, not only by counts")
	fleetMatches = flag.Int("fleet.matches", 200, "matches during all scenarios")
	fleetRate    = flag.Int("fleet.rate", 10, "datagrams per second and direction of each match")
	storePause   = flag.Duration("fleet.pause", 8*time.Second, "duration of the stop of the store")
	allocateFor  = flag.Duration("fleet.allocate", 2*time.Second, "of allocations as fast as they go")
	keepDir      = flag.String("fleet.dir", "", "keep files and logs of the machines in this directory, which must not exist")
)

// waitTimeout bounds every wait for an expected event, also on a slow machine.
const waitTimeout = 30 * time.Second

const pollInterval = 50 * time.Millisecond

// testbed is the fleet under test with its players and callers. The goroutine
// of the test owns it.
type testbed struct {
	*machines
	net      *network
	balancer *balancer
	matches  *matches
	table    table
}

var storeProgram = cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")

// requireTools skips the test if this machine lacks a tool, or fails it in CI and if the store was named.
func requireTools(t *testing.T) {
	t.Helper()
	why := lab.Missing()
	if _, err := exec.LookPath(storeProgram); why == "" && err != nil {
		why = "the tests need a store (apt-get install redis-server, or name its program by REDIS_SERVER): " + err.Error()
	}
	switch {
	case why == "":
	case os.Getenv("CI") == "true", os.Getenv("REDIS_SERVER") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// TestFleet verifies that matches survive the failures and restarts of API
// nodes, relays and the store, and the draining of a relay.
func TestFleet(t *testing.T) {
	requireTools(t)
	b := newTestbed(t)
	defer func() { t.Logf("%d matches at %d datagrams/s each way\n%s", *fleetMatches, *fleetRate, &b.table) }()
	t.Run("allocate", b.measureAllocateRate) // without players
	b.startPlayers(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"api killed", b.apiKilled},
		{"relay killed", b.relayKilled},
		{"store killed", b.storeKilled},
		{"store pauses", b.storePauses},
		{"relay drains", b.relayDrains},
		{"rolling restart", b.rollingRestart},
	} {
		if !t.Run(scenario.name, scenario.run) {
			b.printLogs(t)
		}
	}
	b.checkAllMatches(t)
}

// newTestbed starts everything except the players.
func newTestbed(t *testing.T) *testbed {
	t.Helper()
	dir := t.TempDir()
	if *keepDir != "" {
		dir = *keepDir
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	binary := *binaryFlag
	var err error
	if binary == "" {
		if binary, err = lab.Binary(dir); err != nil {
			t.Fatal(err)
		}
	}
	b := &testbed{}
	if b.net, err = newNetwork(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.net.close(); err != nil {
			t.Error(err)
		}
	})
	if b.machines, err = startMachines(b.net, binary, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.machines.stop(); err != nil {
			t.Error(err)
		}
	})
	stalls := lab.NewStalls()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { stalls.Run(ctx) })
	t.Cleanup(func() { cancel(); watching.Wait() })
	b.balancer = newBalancer(b.net.players, parallelSetups, stalls)
	t.Cleanup(b.balancer.close)
	testkit.NoProblemWithin(t, waitTimeout, "the API nodes list relays of both regions", b.missingRegions)
	return b
}

// startPlayers starts the matches and waits until all players play.
func (b *testbed) startPlayers(t *testing.T) {
	t.Helper()
	var err error
	if b.matches, err = newMatches(b.net, *fleetMatches, *fleetRate); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := b.matches.run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	if err := b.matches.startMatches(t.Context(), b.balancer, *fleetMatches); err != nil {
		b.printLogs(t)
		t.Fatal(err)
	}
	testkit.NoProblemWithin(t, waitTimeout, "all players play", func() string {
		if c := total(b.matches.counts(false)); c.playing < 2**fleetMatches {
			return c.String()
		}
		return ""
	})
	for i := range relayCount {
		t.Logf("matches on relay %d: %d, by kind (%v): %v", i+1, b.matches.countOn(i), matchKindNames, b.matches.countByKind(i))
	}
}

func (b *testbed) missingRegions() string {
	for _, c := range b.balancer.nodes {
		all, err := c.Regions(context.Background())
		if err != nil || len(all) != 2 {
			return fmt.Sprint(c, all, err)
		}
	}
	return ""
}

func (b *testbed) printLogs(t *testing.T) {
	t.Helper()
	for _, m := range b.machines.all() {
		words := strings.TrimSpace(m.Log())
		t.Logf("%s: ...%s", m.name, words[max(0, len(words)-1500):])
	}
}

func (b *testbed) checkAllMatches(t *testing.T) {
	t.Helper()
	began := b.matches.countByKind(0)
	for i := 1; i < relayCount; i++ {
		began = addCounts(began, b.matches.countByKind(i))
	}
	b.matches.mark()
	testkit.NoProblemWithin(t, waitTimeout, "all matches carry traffic both ways", func() string {
		if n := b.matches.resumed(waitTimeout); sum(n) < *fleetMatches {
			return fmt.Sprintf("%v of %v", n, began)
		}
		return ""
	})
	goOn, counts := b.matches.resumed(waitTimeout), b.matches.counts(true)
	for w, c := range counts {
		b.table.checkRow(t, "matches that were lost, "+matchKindNames[w], fmt.Sprintf("%d of %d", began[w]-goOn[w], began[w]), "0",
			c.failed == 0 && goOn[w] == began[w] && began[w] > 0)
	}
	b.table.checkRow(t, "datagrams that end or disturb a game", fmt.Sprint(total(counts).ended), "0", total(counts).ended == 0)
	b.table.addRow(t, "calls / tried again", fmt.Sprintf("%d / %d", b.balancer.calls.Load(), b.balancer.retried.Load()))
	b.table.addRow(t, "calls repeated after processor stalls / total stall", fmt.Sprintf("%d / %s", b.balancer.stallRetries.Load(),
		ms(b.balancer.stalls.Total())))
	for w, c := range counts {
		b.table.addRow(t, "players, "+matchKindNames[w], c.String())
	}
}

type row struct {
	scenario, what, value, goal string
	ok                          bool
}

// table holds the results in the order of the scenarios. The goroutine of the
// test owns it.
type table struct{ rows []row }

// checkRow adds a result and fails the test if ok is false.
func (t *table) checkRow(tb testing.TB, what, saw, goal string, ok bool) {
	tb.Helper()
	t.rows = append(t.rows, row{scenario(tb), what, saw, goal, ok})
	if !ok {
		tb.Errorf("%s: %s; goal %s", what, saw, goal)
	}
}

// checkTimeRow adds a result with a goal of time, which only the long form
// checks.
func (t *table) checkTimeRow(tb testing.TB, what, saw, goal string, ok bool) {
	tb.Helper()
	if *long {
		t.checkRow(tb, what, saw, goal, ok)
		return
	}
	t.rows = append(t.rows, row{scenario(tb), what, saw, goal, ok})
}

func (t *table) addRow(tb testing.TB, what, saw string) {
	t.rows = append(t.rows, row{scenario(tb), what, saw, "", true})
}

func scenario(tb testing.TB) string {
	name := tb.Name()
	return name[strings.LastIndexByte(name, '/')+1:]
}

func (t *table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tresult\t\tgoal\t")
	last := ""
	for _, r := range t.rows {
		shown := r.scenario
		if shown == last {
			shown = ""
		}
		last = r.scenario
		verdict := ""
		if !r.ok {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", shown, r.what, r.value, r.goal, verdict)
	}
	_ = w.Flush() // Writing to a strings.Builder does not fail.
	return b.String()
}
