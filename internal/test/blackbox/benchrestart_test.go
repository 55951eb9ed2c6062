package blackbox

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestBenchRestart: the relay is killed and started again during a run of bench. Every endpoint
// is bound again, datagrams arrive again, and the report has both.
func TestBenchRestart(t *testing.T) {
	t.Parallel()
	place := newPlace(t)
	flags := []string{"--http", "127.0.0.1:" + testkit.FreePort(t), "--udp", "127.0.0.1:" + testkit.FreePort(t), "--advertise", "127.0.0.1"}
	relay := place.serve(flags...)
	file := filepath.Join(t.TempDir(), "run.json")
	var out text
	cmd := exec.Command(binary, "bench", "--api", relay.api, "--token", token, "--matches", "10", "--rate", "400", "--duration",
		"20s", "--json", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // It has ended, if all is well.
	testkit.Eventually(t, "load", func() bool {
		return relay.metric(`ferry_outcomes_total{outcome="relayed"}`) > 400
	})
	relay.Crash()
	relay = place.serve(flags...)
	testkit.Eventually(t, "load after the restart", func() bool {
		return relay.metric(`ferry_outcomes_total{outcome="relayed"}`) > 400
	})
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	relay.Stop()
	content, err := os.ReadFile(file)
	var r struct {
		Recovery struct {
			Endpoints, Bound int
			Latency          struct{ Samples int }
			Duration         time.Duration `json:"durationNs"`
		}
		Errors map[string]int
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	v := r.Recovery
	if v.Endpoints != 20 || v.Bound != 20 || v.Latency.Samples < 20 || v.Duration > 2*testkit.WaitLimit {
		t.Errorf("recovery %+v; errors %v\n%s", v, r.Errors, out.String())
	}
}
