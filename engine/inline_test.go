package engine

import (
	"os/exec"
	"strings"
	"testing"
)

// mustInline are the functions on the path of a forwarded datagram that cost a
// call if they do not inline.
var mustInline = []string{
	"(*outbox).forward", "tick", "(*epoch).enter", "(*epoch).leave", "(*counters).add",
	"(*Table).Activity", "(*Activity).Heard", "(*Activity).Prove", "(*Activity).Meter",
	"(*Activity).Spend", "(*Activity).Active", "(*Activity).Tally",
}

// TestInline asks the compiler.
func TestInline(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", ".", "../internal/table").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range mustInline {
		if !strings.Contains(string(out), "can inline "+name+"\n") {
			t.Errorf("%s does not inline", name)
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
