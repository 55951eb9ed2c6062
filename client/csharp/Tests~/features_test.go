package csharp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/proto"
)

// TestAllocations: messages that are sent and received allocate nothing, so that the collector never runs.
func TestAllocations(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	code := clienttest.Host(t, caller, 4, nil).Code
	g := connected(t, url, code)
	g.Do("allocations 3000")
	line := g.Expect("allocations")
	var messages, memory, collections int
	if _, err := fmt.Sscan(line, &messages, &memory, &collections); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Logf("%d messages back, %d bytes allocated, %d collections", messages, memory, collections)
	if messages < 1500 || memory > 16<<10 || collections != 0 {
		t.Errorf("%d messages allocate %d bytes, %d collections", messages, memory, collections)
	}
}

// TestStats: counters, the round trip of PINGs, and their loss.
func TestStats(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	code := clienttest.Host(t, caller, 4, nil).Code
	gate, front := clienttest.GateAPI(t, url)
	g := connected(t, front, code)
	var sent, received, rebinds, pings, echoes int
	var rtt, last, loss float64
	stats := func() {
		t.Helper()
		g.Do("stats")
		line := g.Expect("stats")
		if _, err := fmt.Sscan(line, &sent, &received, &rebinds, &pings, &echoes, &rtt, &last, &loss); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for late := time.Now().Add(clienttest.Within); ; time.Sleep(20 * time.Millisecond) {
			if stats(); ok() {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("never %s", what)
			}
		}
	}
	wait("echoes", func() bool { return echoes >= 2 })
	if sent == 0 || received == 0 || rebinds != 0 || rtt <= 0 || last <= 0 || rtt > 60e3 || loss > 1 {
		t.Errorf("%d sent, %d received, %d rebinds, %v and %v ms, loss %v", sent, received, rebinds, rtt, last, loss)
	}
	n := 0
	gate.Drop(func(_ netip.AddrPort, kind proto.Type) bool { // Some PINGs, or their echoes.
		if kind == proto.TypePing {
			n++
		}
		return kind == proto.TypePing && n%3 == 0
	})
	wait("loss", func() bool { return loss > 0 })
	gate.Drop(func(netip.AddrPort, proto.Type) bool { return false })
	gate.Move()
	wait("rebinds", func() bool { return rebinds > 0 })
}

// TestRegions: the regions of the API are measured, the nearest first.
func TestRegions(t *testing.T) {
	t.Parallel()
	run := compile(t, "Play.cs")
	url, caller, _ := service(t)
	a, err := caller.Allocate(t.Context(), allocate)
	if err != nil {
		t.Fatal(err)
	}
	relay := fmt.Sprint("127.0.0.1:", a.ServerEndpoints[0].Port)
	mute, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	regions := regexp.MustCompile(`"regions":\[.*?\]`)
	front := clienttest.Rewrite(t, url, func(body []byte) []byte {
		if !bytes.Contains(body, []byte(`"regions"`)) {
			return body
		}
		list := []map[string]string{
			{"id": "mute", "description": "d", "qosAddress": mute.LocalAddr().String()},
			{"id": "none", "description": "d"},
			{"id": "wrong", "description": "d", "qosAddress": "127.0.0.1"},
			{"id": "home", "description": "\u00e9\n\"\\", "qosAddress": relay},
		}
		text, _ := json.Marshal(list)
		return regions.ReplaceAll(body, append([]byte(`"regions":`), bytes.ReplaceAll(text, []byte("$"), []byte("$$"))...))
	})
	out, err := run("regions", front, playerToken).Output()
	if err != nil {
		t.Fatalf("%v, it prints %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "home 5 ") || !strings.HasPrefix(lines[1], "mute 5 0 ") {
		t.Fatalf("it prints\n%s", out)
	}
	var sent, received int
	var rtt, loss float64
	var description string
	if _, err := fmt.Sscan(strings.TrimPrefix(lines[0], "home "), &sent, &received, &rtt, &loss, &description); err != nil {
		t.Fatalf("%q: %v", lines[0], err)
	}
	if received == 0 || rtt <= 0 || rtt > 1000 || loss != float64(sent-received)/float64(sent) || description != "c3a90a225c" {
		t.Errorf("%q", lines[0])
	}
	for _, line := range lines[2:] {
		if !strings.HasPrefix(line, "none 0 0 0 1 ") && !strings.HasPrefix(line, "wrong 0 0 0 1 ") {
			t.Errorf("%q", line)
		}
	}
}

// TestAnswers: answers that are none end in an error that says so, and never in another one.
func TestAnswers(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, _, _ := service(t)
	for answer, want := range map[string]string{
		``:                      "refused: 201 0: the answer is no JSON",
		`<html>`:                "refused: 201 0: the answer is no JSON",
		`{"data":`:              "refused: 201 0: the answer is no JSON",
		`{"data":{"a":"\u12"}}`: "refused: 201 0: the answer is no JSON",
		strings.Repeat(`[`, 40): "refused: 201 0: the answer is no JSON",
		`{"data":{}} x`:         "refused: 201 0: the answer is no JSON",
		`[1,-2.5e3,null,true]`:  "refused: 200 0: the answer has no allocation",
		`{"data":{"allocation":{"allocationId":"a","key":"%"}}}`: "refused: 200 0: the answer has a key that is no base64",
		strings.Repeat(` `, 70000):                               "refused: 200 0: the answer has more than 65536 bytes",
	} {
		front := clienttest.Rewrite(t, url, func([]byte) []byte { return []byte(answer) })
		cmd := run("host", front, hostToken)
		var text bytes.Buffer
		cmd.Stderr = &text
		if err := cmd.Run(); err == nil || !strings.HasPrefix(text.String(), want) {
			t.Errorf("%.40q: %v, it prints %q, want %q", answer, err, &text, want)
		}
	}
}
