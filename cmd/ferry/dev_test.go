package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

var freePorts = []string{"--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"}

func dev(t *testing.T, args ...string) (*process, map[string]string) {
	t.Helper()
	p := launch(t, nil, append(append([]string{"dev"}, freePorts...), args...)...)
	lines := p.untilReady()
	return p, addresses(lines[len(lines)-1])
}

func TestStartUpLines(t *testing.T) {
	p := launch(t, nil, "dev", "--udp", "127.0.0.1:0,[::1]:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	lines := p.untilReady()
	var kinds []string
	ready := lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "listening" || !strings.Contains(ready, f[2]) {
			t.Errorf("line %q, with %q", line, ready)
			continue
		}
		kinds = append(kinds, f[1])
		if _, port, err := net.SplitHostPort(f[2]); err != nil || port == "0" {
			t.Errorf("line %q: %v", line, err)
		}
	}
	if got := strings.Join(kinds, " "); got != "udp udp http admin" {
		t.Errorf("listeners %s", got)
	}
	for _, want := range []string{"NO CREDENTIALS", "NO LIMITS", "NOTHING IS KEPT"} {
		p.says("level=WARN msg=\"DEV: " + want)
	}
	if strings.Contains(p.stderr.String(), "OTHERS CAN REACH") {
		t.Error("it warns of an address on loopback")
	}
}

func TestDevOnEveryAddressWarns(t *testing.T) {
	p := launch(t, nil, "dev", "--udp", "0.0.0.0:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")
	p.untilReady()
	p.says(`"level":"WARN","msg":"DEV: OTHERS CAN REACH THIS RELAY`)
}

// allocation is as much of the API's answer as a client needs that was written
// from the protocol's description alone.
type allocation struct {
	Data struct {
		Allocation struct {
			AllocationID   string `json:"allocationId"`
			IDBytes        []byte `json:"allocationIdBytes"`
			Key            []byte `json:"key"`
			ConnectionData []byte `json:"connectionData"`
			RelayServer    struct {
				IP   string `json:"ipV4"`
				Port int    `json:"port"`
			} `json:"relayServer"`
		} `json:"allocation"`
		JoinCode string `json:"joinCode"`
	} `json:"data"`
}

// call asks the API as curl would.
func call(t *testing.T, url, body string, want int) (a allocation) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		t.Fatalf("%s: %d, %v, %s", url, res.StatusCode, err, text)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatalf("%s: %v in %s", url, err, text)
	}
	return a
}

// exchange sends a datagram until one comes back, and no late answer to what was
// sent before.
func exchange(t *testing.T, conn net.Conn, send []byte, before ...[]byte) []byte {
	t.Helper()
	answer := make([]byte, 1500)
	for range 30 {
		if _, err := conn.Write(send); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, err := conn.Read(answer)
			if err != nil {
				break
			}
			if !slices.ContainsFunc(before, func(b []byte) bool { return string(b) == string(answer[:n]) }) {
				return answer[:n]
			}
		}
	}
	t.Fatalf("no answer to %x", send)
	return nil
}

// TestDevEndToEnd asks with plain HTTP and speaks raw UDP.
func TestDevEndToEnd(t *testing.T) {
	p, at := dev(t)
	a := call(t, at["http"]+"/v1/allocate", `{"maxConnections":4}`, 201).Data.Allocation
	code := call(t, at["http"]+"/v1/joincode", `{"allocationId":"`+a.AllocationID+`"}`, 201).Data.JoinCode
	if joined := call(t, at["http"]+"/v1/join", `{"joinCode":"`+code+`"}`, 200).Data.Allocation; joined.AllocationID == a.AllocationID {
		t.Error("the joiner has the host's allocation")
	}
	server := net.UDPAddr{IP: net.ParseIP(a.RelayServer.IP), Port: a.RelayServer.Port}
	if server.String() != at["udp"] {
		t.Errorf("players are told %v, the relay listens on %s", &server, at["udp"])
	}
	conn, err := net.Dial("udp", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	var signer proto.Signer
	key := proto.Key(a.Key)
	bind := signer.Append(nil, proto.Bind{ConnectionData: a.ConnectionData}, &key)
	bound := slices.Clone(exchange(t, conn, bind))
	if _, err := proto.ParseBindReceived(bound); err != nil {
		t.Fatalf("answer to BIND: %v", err)
	}
	ping := proto.Ping{ID: proto.AllocationID(a.IDBytes), Number: 7}
	if got := exchange(t, conn, ping.Append(nil), bound); string(got) != string(ping.Append(nil)) {
		t.Errorf("answer to PING: %x", got)
	}
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz": "ok", "/": "/metrics", "/metrics": "ferry_bound 1\n",
	} {
		res, err := http.Get(at["admin"] + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, %v\n%s", path, res.StatusCode, err, body)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if strings.Contains(p.stderr.String(), code) {
		t.Error("the join code is in the log")
	}
}

func TestInterruptAndTerminate(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p, _ := dev(t)
		p.signal(s)
		if code := p.exit(); code != 0 {
			t.Errorf("%v: exit code %d: %s", s, code, p.stderr.String())
		}
	}
}

// TestSecondSignal: a call that is under way holds the end up; a second signal
// does not wait for it.
func TestSecondSignal(t *testing.T) {
	p, at := dev(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(at["http"], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/allocate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// The server asks for the body when it has begun with the call.
	if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 100"))); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	p.says("stopping")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "another signal") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestAddressInUse(t *testing.T) {
	_, at := dev(t)
	p := launch(t, nil, "dev", "--udp", at["udp"], "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code := p.exit(); code != exitFailed || !strings.Contains(p.stderr.String(), "address already in use") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}
