package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestVeth verifies that all relays deliver between two namespaces, which are
// removed afterwards.
func TestVeth(t *testing.T) {
	need(t, "ip")
	need(t, "gcc")
	need(t, "turnserver")
	testkit.NeedRoot(t, "making network namespaces")
	before := limit(t)
	for _, network := range []string{netVeth, netVethCut} {
		args := append(smokeArgs(t.TempDir(), ""), "--network", network, "--shapes", "star-up")
		o, err := parseOptions(args, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if err := build(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		var d document
		for range 5 { // A run is as short as a machine may stand still.
			if d = overVeth(t, o, args); !slices.ContainsFunc(d.Samples, func(one sample) bool { return !arrived(&one.Result) }) {
				break
			}
		}
		if d.Network != network || strings.Contains(strings.Join(d.Command, " "), "namespace") {
			t.Errorf("over %s by %v", d.Network, d.Command)
		}
		if n := len(d.Samples); n != 2*len(peers) {
			t.Errorf("%d samples: %v", n, d.Faults)
		}
		whole(t, &session{samples: d.Samples})
	}
	if left, err := exec.Command("ip", "netns", "list").Output(); err != nil || strings.Contains(string(left), "generator") {
		t.Errorf("left: %s, %v", left, err)
	}
	if after := limit(t); after != before {
		t.Errorf("%s has %s, before %s", backlogFile, after, before)
	}
}

func overVeth(t *testing.T, o options, args []string) (d document) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := inVeth(t.Context(), o, []string{self}, args); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.out, "peers.json"))
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func limit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(backlogFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
