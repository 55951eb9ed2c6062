package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func silence(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

func runPing(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return ferry(t.Context(), append([]string{"ping"}, args...)...)
}

type pingReport struct {
	Sites, Matches []struct {
		Transport, Region, Address, Error string
		Sent, Received                    int
		Loss                              float64
		RTT                               *float64 `json:"round_trip_ms"`
		Connected                         *float64 `json:"connected_ms"`
		FailedStep                        string   `json:"failed_step"`
	}
}

// TestPingRelays measures relays by their addresses, without an API.
func TestPingRelays(t *testing.T) {
	t.Parallel()
	_, at := dev(t)
	mute := silence(t)
	for _, c := range []struct {
		relays      []string
		code        int
		first, last []string // words of the first row and of the last one
	}{
		{[]string{mute, at["udp"]}, exitOK, []string{"-", at["udp"], "ms", " 0%"}, []string{"-", mute, "-", "100%", "no relay is there"}},
		{[]string{mute}, exitFailed, []string{mute, "100%"}, []string{mute}},
	} {
		// Where the machine is so busy that an answer is late, another try may do.
		var table string
		if !testkit.Poll(testkit.WaitLimit, func() bool {
			code, stdout, stderr := runPing(t, c.relays...)
			table = stdout + stderr
			rows := strings.Split(strings.TrimSpace(stdout), "\n")
			return code == c.code && len(rows) > 1 && contains(rows[1], c.first) && contains(rows[len(rows)-1], c.last) &&
				(code == exitOK) == (stderr == "")
		}) {
			t.Errorf("ferry ping %q:\n%s", c.relays, table)
		}
	}
	code, stdout, stderr := runPing(t, "--json", at["udp"], mute)
	var report pingReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitOK || len(report.Sites) != 2 || report.Matches != nil {
		t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if s := report.Sites[0]; s.RTT == nil || *s.RTT <= 0 || s.Sent != 5 || s.Received == 0 || s.Loss != float64(5-s.Received)/5 {
		t.Errorf("%+v", s)
	}
	if s := report.Sites[1]; s.RTT != nil || s.Received != 0 || s.Loss != 1 || s.Address != mute {
		t.Errorf("%+v", s)
	}
}

// TestPingRefusedSource: a relay that refuses the source says nothing, so ferry ping does.
func TestPingRefusedSource(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "serve", "-c", settings(t), "--state-dir", t.TempDir(), "--udp", "0.0.0.0:0", "--advertise", "203.0.113.7")
	lines := p.untilReady()
	_, port, err := net.SplitHostPort(addresses(lines[len(lines)-1])["udp"])
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := runPing(t, "127.0.0.1:"+port)
	const want = "no answer to 127.0.0.1: no relay is there, or one with a public address, which refuses loopback"
	if code != exitFailed || !strings.Contains(stdout, want) {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
}

// TestPingMatches: a match is played over each transport that the relay offers, and leaves nothing there.
func TestPingMatches(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--region", "eu")
	lines := p.untilReady()
	at := addresses(lines[len(lines)-1])
	code, stdout, stderr := runPing(t, "--json", at["http"])
	var report pingReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitOK || len(report.Sites) != 1 || len(report.Matches) != 3 {
		t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if s := report.Sites[0]; s.Region != "eu" || s.Address != at["udp"] || s.Sent != 5 {
		t.Errorf("%+v", s)
	}
	for i, transport := range []string{"udp", "dtls", "ws"} {
		m := report.Matches[i]
		if m.Transport != transport || m.Region != "eu" || m.Address != at["udp"] && m.Address != strings.TrimPrefix(at["http"], "http://") ||
			m.Sent != 30 || m.Received == 0 || m.RTT == nil || *m.RTT <= 0 || m.Connected == nil || *m.Connected <= 0 || m.FailedStep != "" {
			t.Errorf("%s: %+v", transport, m)
		}
	}
	var page string
	for _, want := range []string{
		"ferry_allocations 0", "ferry_dtls_half_open 0", "ferry_dtls_sessions 0", "ferry_websocket_connections 0",
		"ferry_websocket_opened_total 2",
	} {
		if !testkit.Poll(testkit.WaitLimit, func() bool { page = metricsPage(t, at["admin"]); return strings.Contains(page, "\n"+want+"\n") }) {
			t.Errorf("%q is missing in\n%s", want, page)
		}
	}

	code, stdout, stderr = runPing(t, "--transport", "ws,wss", at["http"])
	rows := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitFailed || !strings.Contains(stderr, "not every match was played") || len(rows) != 6 ||
		!contains(rows[1], []string{"eu ", at["udp"]}) || !contains(rows[4], []string{"ws ", " ms ", " 0% ", " in eu"}) ||
		!contains(rows[5], []string{"wss ", " - ", "open: the relay offers no endpoint for wss"}) {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
}

func metricsPage(t *testing.T, admin string) string {
	t.Helper()
	res, err := http.Get(admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fakeAPI answers with a region without an address and with allocations that have the endpoints.
func fakeAPI(t *testing.T, endpoints map[string]string) *httptest.Server {
	t.Helper()
	var list []string
	for transport, addr := range endpoints {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf(`{"connectionType":%q,"host":%q,"port":%s}`, transport, host, port))
	}
	bytes := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	allocation := fmt.Sprintf(`{"data":{"allocation":{"allocationId":"00000000-0000-4000-8000-000000000000","allocationIdBytes":%q,
		"connectionData":%q,"hostConnectionData":%q,"key":%q,"region":"moon","relayServer":{"ipV4":"127.0.0.1","port":1},"serverEndpoints":[%s]}}}`,
		bytes(16), bytes(255), bytes(255), bytes(64), strings.Join(list, ","))
	answers := map[string]string{
		"/v1/regions": `{"data":{"regions":[{"id":"moon","description":"far away"}]}}`, "/v1/joincode": `{"data":{"joinCode":"6BCDFG"}}`,
		"/v1/allocate": allocation, "/v1/join": allocation,
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Header.Get("Authorization") != "Bearer the-token-of-this-test":
			w.WriteHeader(http.StatusUnauthorized)
			return
		case r.URL.Path == "/v1/allocate", r.URL.Path == "/v1/joincode":
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	t.Cleanup(api.Close)
	return api
}

// TestPingExplains: a match that cannot be played names the step and the reason.
func TestPingExplains(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	const nobody = "127.0.0.1:1"
	api := fakeAPI(t, map[string]string{"udp": nobody, "ws": nobody, "wss": secure.Listener.Addr().String()})
	code, stdout, stderr := runPing(t, "--token", "the-token-of-this-test", "--transport", "udp,dtls,ws,wss", api.URL)
	rows := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitFailed || len(rows) != 8 {
		t.Fatalf("code %d:\n%s%s", code, stdout, stderr)
	}
	for row, words := range map[int][]string{
		1: {"moon ", "100%", "has no probe address"}, 4: {"udp ", "bind: ", "connection refused"}, 5: {"dtls ", "open: ", "no endpoint for dtls"},
		6: {"ws ", "open: ", "connection refused"}, 7: {"wss ", "open: ", "certificate"},
	} {
		if !contains(rows[row], words) {
			t.Errorf("%q is not in %q", words, rows[row])
		}
	}
	for _, c := range []struct{ token, url, want string }{
		{"another-token", api.URL, "regions: Unauthorized"},
		{"the-token-of-this-test", secure.URL, "certificate"},
		{"the-token-of-this-test", "http://" + nobody, "nothing listens at http://" + nobody},
	} {
		code, stdout, stderr := runPing(t, "--token", c.token, c.url)
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: code %d:\n%s%s", c.url, code, stdout, stderr)
		}
	}
}

// TestPingOtherService: what is answered by a message of another protocol is not called silent.
func TestPingOtherService(t *testing.T) {
	t.Parallel()
	other := testkit.OtherService(t)
	for _, args := range [][]string{
		{other},
		{"--token", "the-token-of-this-test", "--transport", "udp", fakeAPI(t, map[string]string{"udp": other}).URL},
	} {
		code, stdout, stderr := runPing(t, args...)
		const want = "answers with something else than a relay does"
		if !strings.Contains(stdout, want) || strings.Contains(stdout, "no answer") || code != exitFailed {
			t.Errorf("%q: code %d:\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestPingUsage: what cannot be asked is refused before anything is sent.
func TestPingUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                                        "give the URL",
		"127.0.0.1":                               "neither a URL nor HOST:PORT",
		"http://127.0.0.1:1 127.0.0.1:1":          `unexpected argument "127.0.0.1:1"`,
		"127.0.0.1:1 http://127.0.0.1:1":          "neither a URL nor HOST:PORT",
		"127.0.0.1:1 --token x":                   "--token is for the URL",
		"127.0.0.1:1 --every 1s":                  "--every is for the URL",
		"http://127.0.0.1:1 --transport tcp":      `"tcp" is not udp, dtls, ws or wss`,
		"http://127.0.0.1:1 --listen 127.0.0.1:0": "--listen is for --every",
		"http://127.0.0.1:1 --every 1ms":          "1ms is not within 1s and 1h",
		"http://127.0.0.1:1 --every 1s --json":    "--json is not for --every",
		"http://127.0.0.1:1 --every 1s --name x":  "--name is for --report",
		"http://127.0.0.1:1 --every 1s --report 127.0.0.1:1/x?y=z": "--report",
	} {
		if code, stdout, stderr := runPing(t, strings.Fields(line)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("ferry ping %s: code %d, want %q:\n%s%s", line, code, want, stdout, stderr)
		}
	}
}

// TestCheckRelay: UDP and TCP are judged apart, for each address of the name, and a proxy that answers by itself is none.
func TestCheckRelay(t *testing.T) {
	t.Parallel()
	_, at := dev(t)
	web := strings.TrimPrefix(at["http"], "http://")
	page := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	for _, c := range []struct {
		relay string
		code  int
		says  []string
	}{
		{at["udp"], exitFailed, []string{"ok       udp " + at["udp"] + ": ", " probes were answered", "problem  tcp " + at["udp"], "refused"}},
		{web, exitFailed, []string{"problem  udp " + web, "no answer", "-> let the router", "ok       tcp " + web + ": a WebSocket (ws) opens"}},
		{page.Listener.Addr().String(), exitFailed, []string{"problem  tcp", "101 but got 404"}},
		{strings.Replace(web, "127.0.0.1", "localhost", 1), exitFailed, []string{"udp " + web, "tcp " + web}},
		{"relay.invalid:7777", exitFailed, []string{"--relay: lookup relay.invalid"}},
		{"127.0.0.1", exitFailed, []string{"missing port"}},
	} {
		var text string
		if !testkit.Poll(testkit.WaitLimit, func() bool { // A late answer counts as none.
			code, stdout, stderr := ferry(t.Context(), "check", "--relay", c.relay)
			text = stdout + stderr
			return code == c.code && contains(text, c.says)
		}) {
			t.Errorf("ferry check --relay %s:\n%s", c.relay, text)
		}
	}
	code, _, stderr := ferry(t.Context(), "check", "--relay", web, "--machine")
	if code != exitUsage || !strings.Contains(stderr, "--relay goes without") {
		t.Errorf("beside --machine: %d, %s", code, stderr)
	}
}

func contains(row string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(row, w) {
			return false
		}
	}
	return true
}
