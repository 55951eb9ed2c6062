package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func ferry(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err text
	code = run(ctx, append([]string{"ferry"}, args...), nil, &out, &err)
	return code, out.String(), err.String()
}

// shortly is a load that a slow machine carries, over soon.
func shortly(args ...string) []string {
	return append([]string{"bench", "--matches", "5", "--rate", "500", "--duration", "1s", "--warmup", "100ms"}, args...)
}

// undecided reports whether a run was invalid, as any on a busy machine may be.
func undecided(code int, stderr string) bool {
	return code == exitNoVerdict && strings.Contains(stderr, errInvalidRun.Error()+": ")
}

// ran reports whether a run was made that misses no condition.
func ran(code int, stderr string) bool { return code == exitOK || undecided(code, stderr) }

// lossyRelay forwards by address as ferry bench null does, and loses 59 of 100 datagrams, but for
// those of the set-up, which are short.
func lossyRelay(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for n := 0; ; {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if size > 100 {
				if n++; n%100 < 59 {
					continue
				}
			}
			to := from.Addr().As4()
			to[3] ^= 1
			_, _ = conn.WriteToUDPAddrPort(buf[:size], netip.AddrPortFrom(netip.AddrFrom4(to), from.Port()))
		}
	}()
	return conn.LocalAddr().String()
}

// TestBenchGateOnLoss: a latency of what a dead relay did not deliver holds no gate, and gobench
// has no line for a run that is no measurement.
func TestBenchGateOnLoss(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lossy.json")
	code, stdout, stderr := ferry(t.Context(), shortly("--dialect", "swap", "--target", lossyRelay(t), "--quiet", "--json", file,
		"--fail", "p99<500ms")...)
	if !undecided(code, stderr) && (code != exitFailed || !strings.Contains(stderr, "p99<500ms does not hold: never (lost)")) {
		t.Errorf("code %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "never (lost)") {
		t.Errorf("report:\n%s", stdout)
	}
	runs, err := report.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := runs[0]
	if r.LossRatio < 0.589 { // A busy machine loses more.
		t.Errorf("the relay loses 59 %%, and the report says %v", r.LossRatio)
	}
	r.Valid, r.Causes = false, []bench.Cause{{Limit: "machine", Reason: "It was busy."}}
	if err := (files{"json": file}).write(nil, []bench.Result{r}); err != nil {
		t.Fatal(err)
	}
	if err := (job{fail: parsed(t, "loss<60%")}).checkThresholds(outcome{best: r}); !errors.Is(err, errInvalidRun) || errors.Is(err, errGate) {
		t.Errorf("a gate on an invalid run: %v", err)
	}
	for _, c := range []struct {
		args         []string
		lines, notes string
	}{{nil, "", "left out swap of "}, {[]string{"--all"}, "BenchmarkPairs/relay=swap", ""}} {
		code, stdout, stderr := ferry(t.Context(), append(append([]string{"bench", "gobench"}, c.args...), file)...)
		if code != exitOK || !strings.Contains(stdout, c.lines) || (stdout == "") != (c.lines == "") || !strings.Contains(stderr, c.notes) ||
			(stderr == "") != (c.notes == "") {
			t.Errorf("gobench %v: code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"bench --help", "", 0},
		{"bench compare --help", "", 0},
		{"bench gobench --help", "", 0},
		{"bench null --help", "", 0},
		{"bench --html - --json -", "--json and --html cannot both write to standard output", exitBenchUsage},
		{"bench --traffic chess", `traffic "chess" is not one of movement-20p-30hz, `, exitBenchUsage},
		{"bench --traffic movement-2p-60hz --players 256", "Players is 256", exitBenchUsage},
		{"bench --traffic movement-2p-60hz --payload 40", "--payload has no effect with --traffic", exitBenchUsage},
		{"bench extra", `unexpected argument "extra"`, exitBenchUsage},
		{"bench --rate 5 --closed 3", "exclude each other", exitBenchUsage},
		{"bench --shape cube", `shape "cube"`, exitBenchUsage},
		{"bench --direction along", `direction "along"`, exitBenchUsage},
		{"bench --payload 5000", "Payload is 5000", exitBenchUsage},
		{"bench --dialect latin", `"latin" is none of`, exitBenchUsage},
		{"bench --dialect swap", "needs --target", exitBenchUsage},
		{"bench --dialect swap --target nowhere", "--target:", exitBenchUsage},
		{"bench --relay nowhere", "--relay:", exitBenchUsage},
		{"bench --dialect swap --target 203.0.113.7:7 --allow-remote", "are loopback and cannot reach 203.0.113.7:7", exitBenchUsage},
		{"bench --sources everywhere", "is not a prefix", exitBenchUsage},
		{"bench --sources 2001:db8::/64 --family ipv4", "are not of the family ipv4", exitBenchUsage},
		{"bench --transport tcp", `transport "tcp" is not one of udp, dtls, ws, wss`, exitBenchUsage},
		{"bench --family ipv5", `family "ipv5" is not one of ipv4, ipv6`, exitBenchUsage},
		{"bench --dialect direct --transport ws", "direct has no meaning over ws", exitBenchUsage},
		{"bench --dialect swap --target [::1]:7 --family ipv6", "tells endpoints apart by their IPv4 addresses", exitBenchUsage},
		{"bench --transport dtls --shape churn", "the sessions of shape churn are over udp", exitBenchUsage},
		{"bench --transport ws --replace-rate 1", "matches are replaced over udp", exitBenchUsage},
		{"bench --api http://203.0.113.7:7777", "outside of loopback", exitBenchUsage},
		{"bench --fail p99", "--fail:", exitBenchUsage},
		{"bench --target 127.0.0.1:7", "--target has no effect with --dialect ferry", exitBenchUsage},
		{"bench --dialect direct --token a", "--token has no effect with --dialect direct", exitBenchUsage},
		{"bench --players 5", "--players has no effect with --shape pairs", exitBenchUsage},
		{"bench --churn-rate 5", "--churn-rate has no effect with --shape pairs", exitBenchUsage},
		{"bench --admin-token-file x", "--admin-token-file has no effect with no --admin", exitBenchUsage},
		{"bench --admin nowhere", "is not the URL of admin pages", exitBenchUsage},
		{"bench --json /nowhere/a.json", "/nowhere/a.json", exitBenchUsage},
		{"bench --dialect swap --target 127.0.0.1:9", "no relay listens at UDP 127.0.0.1:9: the port is closed", exitNoVerdict},
		{"bench --dialect turn", "--dialect turn needs --target", exitBenchUsage},
		{"bench --turn-user u:p", "--turn-user has no effect with --dialect ferry", exitBenchUsage},
		{"bench --dialect turn --target 127.0.0.1:9", "127.0.0.1:9: the port is closed", exitNoVerdict},
		{"bench --dialect turn --target [::1]:9 --family ipv4", "is not of the family ipv4", exitBenchUsage},
		{"bench --dialect turn --target 192.0.2.1:7", "outside of loopback", exitBenchUsage},
		{"bench --dialect turn --target 127.0.0.1:9 --transport ws", "turn has no meaning over ws", exitBenchUsage},
		{"bench --dialect turn --target 127.0.0.1:9 --shape churn", "turn cannot play sessions", exitBenchUsage},
		{"bench --dialect turn --target 127.0.0.1:9 --replace-rate 1", "turn cannot replace matches", exitBenchUsage},
		{"bench --find-max speed>3", "--find-max:", exitBenchUsage},
		{"bench --find-max=", "no condition", exitBenchUsage},
		{"bench --dialect direct --bind-rate 5", "no handshake", exitBenchUsage},
		{"bench --token a --token-file b", "exclude each other", exitBenchUsage},
		{"bench --token-file /nowhere", "/nowhere", exitBenchUsage},
		{"bench --api http://127.0.0.1:1", "nothing listens at http://127.0.0.1:1", exitNoVerdict},
		{"bench compare", "two files or more", exitBenchUsage},
		{"bench compare a.json", "two files or more", exitBenchUsage},
		{"bench compare /nowhere/a /nowhere/b", "/nowhere/a", exitNoVerdict},
		{"bench gobench", "one file or more", exitBenchUsage},
		{"bench gobench /nowhere/a", "/nowhere/a", exitNoVerdict},
		{"bench null --udp nowhere", "--udp:", exitBenchUsage},
	} {
		code, stdout, stderr := ferry(t.Context(), strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("ferry %s: code %d, want %d with %q: %s", c.args, code, c.code, c.want, stderr)
		}
		if c.code == 0 && !strings.Contains(stdout, "Examples:") {
			t.Errorf("ferry %s has no examples:\n%s", c.args, stdout)
		}
	}
}

func TestBench(t *testing.T) {
	t.Parallel()
	server, at := dev(t)
	dir := t.TempDir()
	file, page := filepath.Join(dir, "run.json"), filepath.Join(dir, "report.html")
	code, stdout, stderr := ferry(t.Context(), shortly("--api", at["http"], "--server-pid", strconv.Itoa(server.Process.Pid),
		"--admin", at["admin"], "--name", "the run", "--token", "a-secret", "--json", file, "--html", page, "--fail",
		"delivered>1,p50<1m")...)
	if !ran(code, stderr) {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, want := range []string{"the run: ", "pairs, udp over ipv4, open loop at 500/s", "limits off (ferry dev), version ", " workers\n",
		"server CPU ", "--token=[hidden]"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	if !strings.Contains(stderr, "delivered ") || !strings.Contains(stderr, "setting up ferry pairs") {
		t.Errorf("no progress: %s", stderr)
	}
	runs, err := report.ReadFile(file)
	if err != nil || len(runs) != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	r := runs[0]
	if r.Relay == nil || r.Relay.Version == "" || r.Relay.Workers == 0 || r.Relay.Limited != 0 {
		t.Errorf("relay %+v", r.Relay)
	}
	if r.Offered != 500 || r.Delivered == 0 || r.Server.PID != server.Process.Pid || r.Load.Flows != 10 || r.Interrupted {
		t.Errorf("result %+v", r)
	}
	html, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(html), "the run") {
		t.Errorf("page of %d bytes, %v", len(html), err)
	}
	if strings.Contains(stdout+stderr+string(html)+fmt.Sprint(r), "a-secret") {
		t.Error("the token is shown")
	}
}

// nothingFound reports whether a search ended without a rate.
func nothingFound(stderr string) bool {
	return strings.Contains(stderr, "no rate meets") || strings.Contains(stderr, "no valid run in 3: ")
}

// TestBenchFindMax makes a short search, in which nothing may be lost anyway.
func TestBenchFindMax(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr text
	file := filepath.Join(t.TempDir(), "max.json")
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"ferry", "bench", "--dialect", "direct", "--matches", "5", "--rate", "100", "--duration",
			"50ms", "--warmup", "0",
			"--find-max", "p50<1m", "--json", file}, nil, &stdout, &stderr)
	}()
	for deadline := time.Now().Add(patience); !strings.Contains(stderr.String(), "passed"); time.Sleep(time.Millisecond) {
		if nothingFound(stderr.String()) && strings.Contains(stdout.String(), "invalid: ") {
			t.Log("the machine was too busy for any run to pass")
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no progress: %s", stderr.String())
		}
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("code %d: %s", code, stderr.String())
	}
	for _, want := range []string{"AT LEAST ", " meets p50<1m, in ", "The search was interrupted.", "Steps of the search",
		"1     1    100/s", "passed"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, stdout.String())
		}
	}
	runs, err := report.ReadFile(file)
	if err != nil || runs[0].Search.Found == nil || runs[0].Search.Verdict != "passed" {
		t.Errorf("%v, %+v", err, runs)
	}
}

func TestLimitsByCommand(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"/usr/bin/ferry dev --workers 1": "off (ferry dev)", "ferry serve -c ferry.yaml": "on (ferry serve)",
		"ferry": "", "ferry demo": "", "coturn dev": "",
	} {
		if got := limitsOfCommand(strings.Fields(line)); got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
	if serverLimits(0) != "" || serverLimits(os.Getpid()) != "" {
		t.Error("this is no relay")
	}
}

// TestBenchNull starts the null relay, loads it, and compares two runs.
func TestBenchNull(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr text
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"ferry", "bench", "null", "--udp", "127.0.0.1:0"}, nil, &stdout, &stderr)
	}()
	for deadline := time.Now().Add(patience); !strings.Contains(stdout.String(), "ready"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %s", stderr.String())
		}
	}
	target := addresses(stdout.String())["udp"]
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"a", "b"} {
		files = append(files, filepath.Join(dir, name))
		if code, _, stderr := ferry(t.Context(), shortly("--dialect", "swap", "--target", target, "--name", name, "--json",
			files[len(files)-1])...); !ran(code, stderr) {
			t.Fatalf("code %d: %s", code, stderr)
		}
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("null relay: code %d: %s", code, stderr.String())
	}
	page := filepath.Join(dir, "page")
	for want, args := range map[string][]string{
		"B = b against A = a, ratios are B/A":               {"--html", page},
		"B = b against A = a, 1 interleaved rounds: median": {"--rounds"},
	} {
		code, stdout, stderr := ferry(t.Context(), append(append([]string{"bench", "compare"}, args...), files...)...)
		if code != exitOK || !strings.Contains(stdout, want) || !strings.Contains(stdout, "latency p99") {
			t.Errorf("code %d, %s\n%s", code, stderr, stdout)
		}
	}
	code, lines, complaint := ferry(t.Context(), append([]string{"bench", "gobench", "--all"}, files...)...)
	if code != exitOK || !strings.Contains(lines, "/relay=a/") || !strings.Contains(lines, "/relay=b/") ||
		!strings.Contains(lines, " p99-ns") {
		t.Errorf("gobench: code %d, %s\n%s", code, complaint, lines)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "In proportion to a") {
		t.Errorf("%v, no ratios on the page", err)
	}
}

func TestBenchCompareRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var names []string
	for i, id := range []string{"one", "two"} {
		names = append(names, filepath.Join(dir, id))
		r := bench.Result{Version: bench.ResultVersion, Machine: bench.Machine{ID: id}}
		if err := (files{"json": names[i]}).write(nil, []bench.Result{r}); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{nil, {"--rounds"}} {
		code, _, stderr := ferry(t.Context(), append(append([]string{"bench", "compare"}, args...), names...)...)
		if code != exitNoVerdict || !strings.Contains(stderr, "different machines: one") {
			t.Errorf("code %d: %s", code, stderr)
		}
	}
}

// TestBenchJSONToStdout: standard output has nothing but the results.
func TestBenchJSONToStdout(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := ferry(t.Context(), "bench", "--dialect", "direct", "--matches", "1", "--rate", "40", "--duration",
		"20ms", "--warmup", "0",
		"--drain", "20ms", "--quiet", "--find-max", "delivered>1M", "--json", "-")
	runs, err := report.Read(strings.NewReader(stdout))
	if code != exitFailed && code != exitNoVerdict || err != nil || len(runs) < 3 || !json.Valid([]byte(stdout)) ||
		!strings.Contains(stderr, "Steps of the search") {
		t.Errorf("code %d, %d runs, %v: %s\n%s", code, len(runs), err, stdout, stderr)
	}
	if _, err := os.Stat("-"); err == nil {
		t.Error("there is a file named -")
	}
}

// TestWithoutVerdict: no invalid run is a success, but for one that shows the rate that a search found. What decides in any
// run decides there, too.
func TestWithoutVerdict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run    string
		fail   string
		reason error // nil: success
	}{
		"valid":              {`{"valid":true}`, "", nil},
		"invalid":            {`{}`, "", errInvalidRun},
		"with a condition":   {`{"offered":9,"lossRatio":1}`, "loss<1%", errInvalidRun},
		"interrupted":        {`{"interrupted":true}`, "", errInvalidRun},
		"interrupted search": {`{"interrupted":true,"search":{}}`, "", errInvalidRun},
		"found":              {`{"search":{"found":{}}}`, "", nil},
		"found, condition":   {`{"search":{"found":{}}}`, "loss<1%", errInvalidRun},
		"misdelivered":       {`{"sent":9,"misdelivered":1}`, "", errGate},
		"found, corrupt":     {`{"sent":9,"corrupt":1,"search":{"found":{}}}`, "", errGate},
		"absent":             {`{"load":{"shape":"idle","drainNs":9},"gaps":{"endpoints":2,"absent":1}}`, "", errGate},
		"absent, late": {`{"load":{"shape":"idle","drainNs":9},"gaps":{"endpoints":2,"absent":1},"generator":{"lag":{"maxNs":9}}}`, "",
			errInvalidRun},
	} {
		var r bench.Result
		if err := json.Unmarshal([]byte(c.run), &r); err != nil {
			t.Fatal(err)
		}
		err := (job{fail: parsed(t, c.fail)}).checkThresholds(outcome{best: r})
		if !errors.Is(err, c.reason) || err != nil && errors.Is(err, errGate) == errors.Is(err, errInvalidRun) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func parsed(t *testing.T, conditions string) []bench.Threshold {
	t.Helper()
	all, err := bench.ParseThresholds(conditions)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestBestFirst(t *testing.T) {
	t.Parallel()
	at := func(s int) bench.Result {
		return bench.Result{Version: 1, Started: time.Unix(int64(s), 0)}
	}
	var got []int64
	for _, r := range newOutcome(at(2), []bench.Result{at(1), at(2), at(3)}).runs {
		got = append(got, r.Started.Unix())
	}
	if fmt.Sprint(got) != "[2 1 3]" {
		t.Errorf("order %v", got)
	}
}

// TestBenchServerEnds: the process of the relay ends during the run. What was seen is reported,
// and the exit code says that something was wrong.
func TestBenchServerEnds(t *testing.T) {
	t.Parallel()
	server, at := dev(t)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		testkit.Poll(time.Minute, func() bool { // until the load runs
			res, err := http.Get(at["admin"] + "/metrics")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			metrics, err := io.ReadAll(res.Body)
			_, count, _ := strings.Cut(string(metrics), `ferry_outcomes_total{outcome="relayed"} `)
			count, _, _ = strings.Cut(count, "\n")
			n, _ := strconv.Atoi(count)
			return err == nil && n > 300 // More than the set-up sends.
		})
		_ = server.Process.Kill()
	}()
	code, stdout, stderr := ferry(t.Context(), "bench", "--api", at["http"], "--matches", "5", "--rate", "500", "--warmup", "1ms",
		"--duration", "4s", "--server-pid", strconv.Itoa(server.Process.Pid))
	<-killed
	if code != exitFailed || !strings.Contains(stderr, "the server's process ended during the run") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "pairs, udp over ipv4, open loop at 500/s") || strings.Contains(stdout, "server CPU per datagram") {
		t.Errorf("report:\n%s", stdout)
	}
}
