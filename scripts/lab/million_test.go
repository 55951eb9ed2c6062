//go:build lab && linux

package lab

import (
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Flags of TestMillion, whose long form is make million.
var (
	millionMatches  = flag.Int("million.matches", 300, "live matches, two allocations each")
	millionRate     = flag.Int("million.rate", 1000, "datagrams per second of all matches")
	millionReplace  = flag.Float64("million.replace", 20, "matches per second that fall silent and are replaced")
	millionDuration = flag.Duration("million.duration", 2*time.Second, "of the comings and goings")
	millionPing     = flag.Duration("million.ping", 4*time.Second,
		"silence after which a client sends PING; clearly below the idle limit of 10 s")
)

const (
	// millionLimit is the default idle limit; a silent allocation ends at most
	// millionLate after it was last active.
	millionLimit, millionLate = 10 * time.Second, 11 * time.Second
	// millionSetup bounds the set-up of one match, millionSlack that of the smallest form.
	millionSetup, millionSlack = 10 * time.Millisecond, 2 * time.Minute
)

// TestMillion verifies that many matches under the default limits live on, while some fall
// silent and new ones arrive: no live allocation ends, every silent one does, every new
// match gets its links, and nothing is left at the end. Relay and clients are in a
// namespace of their own, over its loopback.
func TestMillion(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	n, err := NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	// dev has the default limits but for bind_timeout, and no limit of calls.
	p, err := StartProcess(ProcessConfig{
		In: n.Relay, Path: ferry, Log: filepath.Join(dir, "ferry.log"), Ready: FerryReady,
		Args: []string{"dev", "--bind-timeout", "10s", "--max-allocations", strconv.Itoa(2**millionMatches + int(60**millionReplace) + 1000)},
	})
	if err != nil {
		t.Fatal(err)
	}
	relay := &Relay{Process: p}
	relay.admin.Transport, relay.admin.Timeout = &http.Transport{DialContext: n.Relay.Dial, DisableKeepAlives: true}, 5*time.Second
	t.Cleanup(func() {
		if err := relay.Stop(); err != nil {
			t.Errorf("%v; log: %s", err, relay.Log())
		}
	})

	r := runMillion(t, n.Relay, p.cmd.Process.Pid, filepath.Join(dir, "result.json"))
	checkMillion(t, &r)
	testkit.Eventually(t, "no allocation is left", func() bool {
		all, err := relay.Metrics()
		return err == nil && all["ferry_allocations"]+all["ferry_bound"]+all["ferry_links"] == 0
	})
}

// runMillion runs the load, which ends by itself.
func runMillion(t *testing.T, in Namespace, pid int, path string) bench.Result {
	within := millionSlack + *millionDuration + time.Duration(*millionMatches)*millionSetup
	cmd := exec.CommandContext(t.Context(), "timeout", fmt.Sprint(int(within.Seconds())), "ip", "netns", "exec", in.Name, ferry, "bench",
		"--api", "http://127.0.0.1:7777", "--shape", "pairs", "--matches", strconv.Itoa(*millionMatches), "--rate", strconv.Itoa(*millionRate),
		"--replace-rate", fmt.Sprint(*millionReplace), "--duration", millionDuration.String(), "--keepalive", millionPing.String(),
		"--warmup", "1s", "--drain", "30s", "--server-pid", strconv.Itoa(pid), "--quiet", "--json", path)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil && cmd.ProcessState.ExitCode() != 2 { // The counts of an invalid run are right, too.
		t.Fatal(err)
	}
	runs, err := report.ReadFile(path)
	if err != nil || len(runs) != 1 || runs[0].Replaced == nil {
		t.Fatalf("%d results: %v", len(runs), err)
	}
	return runs[0]
}

// checkMillion checks the counts, and with -long the times.
func checkMillion(t *testing.T, r *bench.Result) {
	p := r.Replaced
	if p.Arrived == 0 || p.Offered != p.Arrived || p.Refused+p.NoEndpoint+p.Failed != 0 {
		t.Errorf("of %d new matches %d arrived, the API refused %d, %d had no endpoint, %d failed", p.Offered, p.Arrived, p.Refused,
			p.NoEndpoint, p.Failed)
	}
	if p.Ended != 2*p.Arrived || p.NotEnded != 0 {
		t.Errorf("of %d silent endpoints %d ended, %d did not", 2*p.Arrived, p.Ended, p.NotEnded)
	}
	// The relay's clock has ticks of 250 ms.
	if p.EndedEarly != 0 || p.End.Samples > 0 && p.End.Min < millionLimit-250*time.Millisecond {
		t.Errorf("%d live endpoints were ended; a silent one after %v", p.EndedEarly, p.End.Min)
	}
	for name, count := range r.Errors {
		t.Errorf("%s: %d", name, count)
	}
	if !*long {
		return
	}
	if p.End.P999 > millionLate {
		t.Errorf("one of a thousand silent endpoints ended after more than %v, goal %v", p.End.P999, millionLate)
	}
	if r.LossRatio > 1e-3 {
		t.Errorf("%.3f %% of the datagrams were lost", 100*r.LossRatio)
	}
	if !r.Valid {
		t.Logf("the run is invalid, so that latencies are not the relay's: %s", r.InvalidReason())
	}
}
