package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/probe"
)

// probing is a ferry probe that runs in this process.
type probing struct {
	t      *testing.T
	stdout text
	stderr text
	cancel context.CancelFunc
	code   chan int
}

// startProbe writes JSON.
func startProbe(t *testing.T, args ...string) *probing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &probing{t: t, cancel: cancel, code: make(chan int, 1)}
	go func() {
		p.code <- run(ctx, append([]string{"ferry", "probe", "--json", "--tick-rate", "100", "--stats", "100ms"}, args...), nil,
			&p.stdout, &p.stderr)
	}()
	t.Cleanup(cancel)
	return p
}

// lines returns what was printed so far.
func (p *probing) lines() (all []probe.Line) {
	p.t.Helper()
	for text := range strings.Lines(p.stdout.String()) {
		var l probe.Line
		if err := json.Unmarshal([]byte(text), &l); err != nil && strings.HasSuffix(text, "\n") {
			p.t.Fatalf("line %q: %v", text, err)
		}
		all = append(all, l)
	}
	return all
}

// wait waits for the first line of which f is true.
func (p *probing) wait(what string, f func(probe.Line) bool) probe.Line {
	p.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, l := range p.lines() {
			if f(l) {
				return l
			}
		}
	}
	p.t.Fatalf("no %s in:\n%s%s", what, p.stdout.String(), p.stderr.String())
	return probe.Line{}
}

// exit waits for the end and returns the exit code.
func (p *probing) exit() int {
	p.t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(patience):
		p.t.Fatalf("it does not end:\n%s%s", p.stdout.String(), p.stderr.String())
		return -1
	}
}

// states returns the states of the first connection.
func (p *probing) states() string {
	p.t.Helper()
	var list []string
	for _, l := range p.lines() {
		if l.Event == "state" {
			list = append(list, l.State)
		}
	}
	return strings.Join(list, " ")
}

func event(name string) func(probe.Line) bool {
	return func(l probe.Line) bool { return l.Event == name }
}

// flowing is true for the counters of a connection over which streams pass.
func flowing(l probe.Line) bool {
	return l.Event == "stats" && l.Stats.StreamGot > 10 && l.Stats.RTT > 0 && l.Stats.Sent > 0
}

// TestProbeDirect plays a server and a client on one machine, over a bad network.
func TestProbeDirect(t *testing.T) {
	t.Parallel()
	server := startProbe(t, "--listen", "127.0.0.1:0", "--once", "--send", "600")
	at := server.wait("address", event("listening")).Address
	client := startProbe(t, "--connect", at, "--send", "40", "--sim", "delay=2ms,loss=10,duplicate=10", "--seed", "4")
	client.wait("stream", flowing)
	server.wait("stream", flowing)
	client.cancel()
	if code := client.exit(); code != exitOK {
		t.Errorf("client: code %d: %s", code, client.stderr.String())
	}
	if code := server.exit(); code != exitOK {
		t.Errorf("server: code %d: %s", code, server.stderr.String())
	}
	if got := client.states(); got != "connecting handshake connected" {
		t.Errorf("client: %s", got)
	}
	if got := server.states(); got != "handshake connected disconnected" {
		t.Errorf("server: %s", got)
	}
	end := server.wait("reason", func(l probe.Line) bool { return l.State == "disconnected" })
	if end.Reason != "closed by remote" || end.PeerReason != "connection closed" || end.NetworkID != 1 {
		t.Errorf("end: %+v", end)
	}
	if last := client.wait("end", event("end")); last.Stats.Simulated["lost out"] == 0 || last.Stats.Simulated["duplicated in"] == 0 {
		t.Errorf("nothing was simulated: %+v", last.Stats)
	}
}

// TestProbeThroughRelay finds its server by a join code, and is let in.
func TestProbeThroughRelay(t *testing.T) {
	t.Parallel()
	_, at := dev(t)
	server := startProbe(t, "--host", "2", "--api", at["http"], "--approve", "--once", "--send", "4000")
	code := server.wait("join code", event("listening")).JoinCode
	client := startProbe(t, "--join", code, "--api", at["http"], "--send", "40")
	client.wait("stream", flowing)
	if got := client.states(); got != "connecting handshake approval connected" {
		t.Errorf("client: %s", got)
	}
	server.wait("hello", func(l probe.Line) bool { return l.Data == "hello" && l.Bytes == 5 })
	server.cancel()
	if code := server.exit(); code != exitOK {
		t.Errorf("server: code %d: %s", code, server.stderr.String())
	}
	if code := client.exit(); code != exitOK {
		t.Errorf("client: code %d: %s", code, client.stderr.String())
	}
	end := client.wait("end", func(l probe.Line) bool { return l.State == "disconnected" })
	if end.Reason != "closed by remote" && end.Reason != "protocol error" { // The second if only the relay's word arrived.
		t.Errorf("end: %+v", end)
	}
}

// TestProbeTransport speaks as Unity peers do, on each pipeline.
func TestProbeTransport(t *testing.T) {
	t.Parallel()
	_, at := dev(t)
	for _, c := range []struct {
		speak    string
		pipeline int
		relay    bool
		send     int
	}{
		{"entities", 0, false, 100}, {"entities", 2, true, 100}, {"entities", 3, false, 4096},
		{"gameobjects", 1, false, 4096}, {"gameobjects", 2, true, 4096}, {"gameobjects", 3, true, 300},
	} {
		t.Run(fmt.Sprint(c.speak, c.pipeline), func(t *testing.T) {
			here, there := []string{"--listen", "127.0.0.1:0"}, []string{"--connect"}
			if c.relay {
				here, there = []string{"--host", "1", "--api", at["http"]}, []string{"--api", at["http"], "--join"}
			}
			common := []string{"--speak", c.speak, "--pipeline", fmt.Sprint(c.pipeline), "--send", fmt.Sprint(c.send)}
			server := startProbe(t, append(append(here, "--once"), common...)...)
			up := server.wait("address", event("listening"))
			if there = append(there, up.Address); c.relay {
				there[len(there)-1] = up.JoinCode
			}
			client := startProbe(t, append(there, common...)...)
			message := func(l probe.Line) bool {
				return l.Data == "message" && l.Bytes == c.send && l.Pipeline == c.pipeline && strings.HasPrefix(l.Head, "0000")
			}
			client.wait("message", message)
			server.wait("message", message)
			client.cancel()
			if a, b := client.exit(), server.exit(); a != exitOK || b != exitOK {
				t.Errorf("codes %d, %d: %s%s", a, b, client.stderr.String(), server.stderr.String())
			}
			if got := client.states() + ", " + server.states(); got != "connected, incoming disconnected" {
				t.Errorf("states: %s", got)
			}
		})
	}
}

// TestProbeFails: the exit code is not zero if no client was connected.
func TestProbeFails(t *testing.T) {
	t.Parallel()
	server := startProbe(t, "--listen", "127.0.0.1:0", "--game-version", "1")
	at := server.wait("address", event("listening")).Address
	client := startProbe(t, "--connect", at, "--game-version", "2")
	if code := client.exit(); code != exitFailed || !strings.Contains(client.stderr.String(), "ferry: there never was a connection") {
		t.Errorf("code %d: %s", code, client.stderr.String())
	}
	client.wait("reason", func(l probe.Line) bool { return l.Reason == "bad protocol version" })
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--connect " + silence(t) + " --duration 50ms", "ferry: there never was a connection", exitFailed},
		{"--listen 127.0.0.1:0 --once --duration 50ms", "ferry: there never was a connection", exitFailed},
		{"--listen 127.0.0.1:0 --duration 50ms", "", exitOK},
		{"--listen " + at, "address already in use", exitFailed},
		{"--join 6BCDFG --api http://127.0.0.1:1", "nothing listens at http://127.0.0.1:1", exitFailed},
		{"", "give one of", exitUsage},
		{"--listen 127.0.0.1:0 --connect 127.0.0.1:9", "give one of", exitUsage},
		{"--listen nowhere", "--listen:", exitUsage},
		{"--connect 127.0.0.1:0", "port 0", exitUsage},
		{"--host 2", "need --api", exitUsage},
		{"--host 1001 --api http://127.0.0.1:1", "1 to 1000", exitUsage},
		{"--listen 127.0.0.1:0 --api http://127.0.0.1:1", "are for --host and --join", exitUsage},
		{"--listen 127.0.0.1:0 --speak klingon", `"klingon" is none of`, exitUsage},
		{"--listen 127.0.0.1:0 --send 5000", "4096 bytes", exitUsage},
		{"--listen 127.0.0.1:0 --pipeline 4", "0 to 3", exitUsage},
		{"--listen 127.0.0.1:0 --speak entities --pipeline 1 --send 4000", "takes 1390 bytes", exitUsage},
		{"--listen 127.0.0.1:0 --speak entities --approve", "are for --speak netcode", exitUsage},
		{"--listen 127.0.0.1:0 --tick-rate 0", "1 to 1000", exitUsage},
		{"--listen 127.0.0.1:0 --duration -1s", "below 0", exitUsage},
		{"--listen 127.0.0.1:0 --sim moon", `no preset "moon"`, exitUsage},
		{"--listen 127.0.0.1:0 --sim-in loss=101", "--sim-in or --sim", exitUsage},
	} {
		code, stdout, stderr := ferry(t.Context(), append([]string{"probe"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("ferry probe %s: code %d, want %d with %q:\n%s%s", c.args, code, c.code, c.want, stdout, stderr)
		}
	}
}

// TestProbeText is what people read.
func TestProbeText(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := ferry(t.Context(), "probe", "--listen", "127.0.0.1:0", "--duration", "20ms")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitOK || len(lines) != 2 || !strings.Contains(lines[0], "listening  at 127.0.0.1:") ||
		!strings.Contains(lines[1], "end  sent 0 (0 B)  received 0 (0 B)") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
}
