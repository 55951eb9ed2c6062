//go:build lab && linux

package fleet

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// Flags turn the quick form into the long one, which decides by all goals.
var (
	given        = flag.String("ferry", "", "test this binary; empty builds one")
	long         = flag.Bool("long", false, "decide by goals of time too, not only by counts")
	fleetMatches = flag.Int("fleet.matches", 200, "matches that go on through everything")
	fleetRate    = flag.Int("fleet.rate", 10, "datagrams per second and direction of each match")
	storePause   = flag.Duration("fleet.pause", 8*time.Second, "for which the store stands still")
	allocateFor  = flag.Duration("fleet.allocate", 2*time.Second, "of allocations as fast as they go")
	keep         = flag.String("fleet.dir", "", "keep files and logs of the machines in this directory, which must not exist")
)

// waitTimeout bounds every wait for an expected event, also on a slow machine.
const waitTimeout = 30 * time.Second

// pollEvery is the time between two looks at what has to come.
const pollEvery = 50 * time.Millisecond

// testbed is the fleet under test with all its users. The goroutine of the
// test owns it.
type testbed struct {
	*machines
	net      *network
	balancer *balancer
	matches  *matches
	table    table
}

// need fails or skips the test on a machine that lacks something.
func need(t *testing.T) {
	t.Helper()
	why := lab.Missing()
	if _, err := exec.LookPath("redis-server"); why == "" && err != nil {
		why = "the fleet needs a store (apt-get install redis-server): " + err.Error()
	}
	switch {
	case why == "":
	case os.Getenv("CI") == "true":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// TestFleet is the life of a fleet under matches that must not notice: API
// nodes, relays and the store are killed or stand still, relays are restarted in
// turn, one is drained.
func TestFleet(t *testing.T) {
	need(t)
	y := newTestbed(t)
	defer func() { t.Logf("%d matches at %d datagrams/s each way\n%s", *fleetMatches, *fleetRate, &y.table) }()
	t.Run("allocate", y.allocate) // without players
	y.begin(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"api killed", y.apiKilled},
		{"relay killed", y.relayKilled},
		{"store killed", y.storeKilled},
		{"store pauses", y.storePauses},
		{"relay drains", y.relayDrains},
		{"rolling restart", y.rollingRestart},
	} {
		if !t.Run(scenario.name, scenario.run) {
			y.logs(t)
		}
	}
	y.inTheEnd(t)
}

// newTestbed builds everything but the players.
func newTestbed(t *testing.T) *testbed {
	t.Helper()
	dir := t.TempDir()
	if *keep != "" {
		dir = *keep
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	binary := *given
	var err error
	if binary == "" {
		if binary, err = lab.Binary(dir); err != nil {
			t.Fatal(err)
		}
	}
	y := &testbed{}
	if y.net, err = newNetwork(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := y.net.close(); err != nil {
			t.Error(err)
		}
	})
	if y.machines, err = startMachines(y.net, binary, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := y.machines.stop(); err != nil {
			t.Error(err)
		}
	})
	stalls := lab.NewStalls()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { stalls.Run(ctx) })
	t.Cleanup(func() { cancel(); watching.Wait() })
	y.balancer = newBalancer(y.net.players, enrolling, stalls)
	t.Cleanup(y.balancer.close)
	testkit.NoProblemWithin(t, waitTimeout, "the API nodes know relays of both regions", y.allRegions)
	return y
}

// begin lets the matches begin, and waits until all players play.
func (y *testbed) begin(t *testing.T) {
	t.Helper()
	var err error
	if y.matches, err = newMatches(y.net, *fleetMatches, *fleetRate); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := y.matches.run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	if err := y.matches.startMatches(t.Context(), y.balancer, *fleetMatches); err != nil {
		y.logs(t)
		t.Fatal(err)
	}
	testkit.NoProblemWithin(t, waitTimeout, "all players play", func() string {
		if c := total(y.matches.counts(false)); c.playing < 2**fleetMatches {
			return c.String()
		}
		return ""
	})
	for i := range relayCount {
		t.Logf("matches on relay %d: %d, by way (%v): %v", i+1, y.matches.on(i), wayNames, y.matches.by(i))
	}
}

// allRegions returns the regions that an API node does not list yet, "" for none.
func (y *testbed) allRegions() string {
	for _, c := range y.balancer.nodes {
		all, err := c.Regions(context.Background())
		if err != nil || len(all) != 2 {
			return fmt.Sprint(c, all, err)
		}
	}
	return ""
}

// logs prints the last words of all machines, after something went wrong.
func (y *testbed) logs(t *testing.T) {
	t.Helper()
	for _, m := range y.machines.all() {
		words := strings.TrimSpace(m.Log())
		t.Logf("%s: ...%s", m.name, words[max(0, len(words)-1500):])
	}
}

// inTheEnd demands that every match that began goes on, and nothing was ended.
func (y *testbed) inTheEnd(t *testing.T) {
	t.Helper()
	began := y.matches.by(0)
	for i := 1; i < relayCount; i++ {
		began = plus(began, y.matches.by(i))
	}
	y.matches.mark()
	testkit.NoProblemWithin(t, waitTimeout, "all matches carry traffic both ways", func() string {
		if n := y.matches.resumed(waitTimeout); sum(n) < *fleetMatches {
			return fmt.Sprintf("%v of %v", n, began)
		}
		return ""
	})
	goOn, counts := y.matches.resumed(waitTimeout), y.matches.counts(true)
	for w, c := range counts {
		y.table.check(t, "matches that were lost, "+wayNames[w], fmt.Sprintf("%d of %d", began[w]-goOn[w], began[w]), "0",
			c.dead == 0 && goOn[w] == began[w] && began[w] > 0)
	}
	y.table.check(t, "datagrams that end or disturb a game", fmt.Sprint(total(counts).ended), "0", total(counts).ended == 0)
	y.table.add(t, "calls / tried again", fmt.Sprintf("%d / %d", y.balancer.calls.Load(), y.balancer.retried.Load()))
	y.table.add(t, "calls made again as processors stood still / for so long", fmt.Sprintf("%d / %s", y.balancer.stallRetries.Load(), ms(y.balancer.stalls.Total())))
	for w, c := range counts {
		y.table.add(t, "players, "+wayNames[w], c.String())
	}
}
