package blackbox

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

var hexInSheet = regexp.MustCompile("`([0-9a-f]{4,})`")

// TestInteropSheet: the bytes that a Unity user compares with stand in the golden
// vectors, and the metrics that he looks at are there.
func TestInteropSheet(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../scripts/interop.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Vectors []struct{ Hex string } }
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	_, compared, _ := strings.Cut(string(page), "## Hex to compare")
	shown := hexInSheet.FindAllStringSubmatch(compared, -1)
	if len(shown) < 10 {
		t.Fatalf("the sheet has %d pieces of hex", len(shown))
	}
	for _, piece := range shown {
		found := false
		for _, v := range golden.Vectors {
			found = found || strings.Contains(v.Hex, piece[1])
		}
		if !found {
			t.Errorf("%s is in no golden vector", piece[1])
		}
	}
	f := dev(t)
	for _, metric := range []string{
		"ferry_allocations", "ferry_bound", "ferry_links", "ferry_dtls_sessions", "ferry_websocket_connections", "ferry_recovery_rebuilt_total",
	} {
		if !strings.Contains(string(page), strings.TrimPrefix(metric, "ferry_")) {
			t.Errorf("the sheet does not name %s", metric)
		}
		f.metric(metric)
	}
}
