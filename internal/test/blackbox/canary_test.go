package blackbox

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestCanary: ferry ping --every plays matches over every transport, counts the step that fails while there is
// no relay, and plays again when it is back.
func TestCanary(t *testing.T) {
	t.Parallel()
	place := newPlace(t)
	http, udp, admin := "127.0.0.1:"+testkit.FreePort(t), "127.0.0.1:"+testkit.FreePort(t), "127.0.0.1:"+testkit.FreePort(t)
	flags := []string{"--http", http, "--udp", udp, "--advertise", "127.0.0.1", "--trusted-proxies", "127.0.0.1",
		"--advertise-name", "localhost:" + strings.TrimPrefix(http, "127.0.0.1:"), "--admin", admin}
	relay := place.serve(flags...)

	var log text
	cmd := exec.Command(binary, "ping", "http://"+http, "--token", token, "--transport", "udp,dtls", "--every", "1s",
		"--listen", "127.0.0.1:0", "--report", "http://"+admin, "--name", "test")
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // It has ended, if all is well.
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "ready metrics=")
	if err != nil || !ok {
		t.Fatalf("%q, %v; log:\n%s", line, err, log.String())
	}
	probed := &ferry{t: t, admin: strings.TrimSuffix(url, "/metrics"), http: relay.http}
	eventually := func(what, metric string, least float64) {
		t.Helper()
		if !testkit.Poll(testkit.WaitLimit, func() bool { return probed.metric(metric) >= least }) {
			t.Fatalf("not within %v: %s; log:\n%s", testkit.WaitLimit, what, log.String())
		}
	}
	for _, transport := range []string{"udp", "dtls"} {
		eventually("a match over "+transport, `ferry_canary_matches_total{transport="`+transport+`",result="ok"}`, 2)
		eventually("round trips over "+transport, `ferry_canary_round_trip_seconds_count{transport="`+transport+`"}`, 4)
	}
	reported := func(what string, is func(operator.CanaryTransport) bool) {
		t.Helper()
		if !testkit.Poll(testkit.WaitLimit, func() bool {
			var all operator.Canaries
			_, page := relay.askAdmin("GET", "/canaries")
			return json.Unmarshal(page, &all) == nil && len(all.Canaries) == 1 && all.Canaries[0].Name == "test" &&
				slices.ContainsFunc(all.Canaries[0].Transports, is)
		}) {
			t.Fatalf("not reported within %v: %s; log:\n%s", testkit.WaitLimit, what, log.String())
		}
	}
	reported("matches over dtls", func(c operator.CanaryTransport) bool {
		return c.Transport == "dtls" && c.Matches > 1 && c.Failed == 0 && c.FailingSince.IsZero() && c.Median > 0 && c.P99 >= c.Median
	})
	relay.Crash()
	eventually("a failure without a relay", `ferry_canary_matches_total{transport="udp",result="allocate"}`, 2)
	played := probed.metric(`ferry_canary_matches_total{transport="udp",result="ok"}`)
	relay = place.serve(flags...)
	eventually("a match after the relay's return", `ferry_canary_matches_total{transport="udp",result="ok"}`, played+1)
	reported("the failures", func(c operator.CanaryTransport) bool {
		return c.Transport == "udp" && c.Failed > 1 && c.Matches > c.Failed && c.FailingSince.IsZero() && c.Failure == ""
	})
	if got := probed.metric(`ferry_canary_last_success_seconds{transport="udp"}`); time.Since(time.Unix(int64(got), 0)) > testkit.WaitLimit {
		t.Errorf("the last success was at %v", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the canary ended with %v; log:\n%s", err, log.String())
	}
	for _, want := range []string{`msg="a match was played" transport=dtls`, `msg="a match failed" transport=udp step=`,
		`msg="matches are played again" transport=udp`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is missing in\n%s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "transport=udp"); n > 5 {
		t.Errorf("%d lines about one transport: one for each change is enough\n%s", n, log.String())
	}
	relay.Stop()
}
