package engine

import (
	"os/exec"
	"strings"
	"testing"
)

// mustInline are functions on the path of a forwarded datagram, by package: each
// runs for every datagram or batch and would otherwise cost a call.
var mustInline = map[string][]string{
	".": {"tick", "(*epoch).enter", "(*epoch).leave", "(*counters).add", "(*counters).sent"},
	"../internal/table": {
		"(*Table).Activity", "(*Activity).RecordReceive", "(*Activity).Validate", "(*Activity).TakeQuota",
		"(*Activity).AllowSend", "(*Activity).RecordActivity", "(*Activity).CounterIndex",
	},
	"../internal/sock": {"(*gate).enter", "(*gate).leave", "(*SendBatch).Len", "(*merger).hash"},
	"../proto":         {"ParseType", "ParseRelay"},
}

// TestInline asks the compiler that builds the test which functions it can
// inline.
func TestInline(t *testing.T) {
	for dir, names := range mustInline {
		out, err := exec.Command("go", "build", "-gcflags=-m", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range names {
			if !strings.Contains(string(out), ": can inline "+name+"\n") {
				t.Errorf("%s in %s does not inline", name, dir)
			}
		}
	}
}

// TestLayout: words that different goroutines write do not share a cache line.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		size uintptr
	}{
		{"epoch", sizeOf[epoch]()},
	} {
		if c.size != 64 {
			t.Errorf("%s has %d bytes, want a cache line", c.name, c.size)
		}
	}
	ring := fieldOffsets[ring]()
	if ring["head"]-ring["tail"] < 64 || ring["tail"]%64 != 0 && ring["tail"]-ring["slots"] < 64 {
		t.Errorf("the ends of a ring share a cache line: %v", ring)
	}
	if b := fieldOffsets[budgets](); b["prefixes"]-b["process"] < 64 {
		t.Errorf("the process gate shares a cache line with the prefixes: %v", b)
	}
}
