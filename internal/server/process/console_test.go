package process

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// TestHostLosses: the console names what the machine loses, while it does.
func TestHostLosses(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{}
	u := hostLosses{root: root}
	now := time.Unix(0, 0)
	problems := func(received, checksums, sent, drops int) string {
		root["proc/self/net/snmp"] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"Udp: InDatagrams InCsumErrors OutDatagrams SndbufErrors\nUdp: %d %d %d %d\n", received, checksums, sent, drops)}
		now = now.Add(lossesOver / 2)
		var all []string
		for _, l := range u.recent(now).losses() {
			if l.Change != "" {
				all = append(all, l.Subject)
			}
		}
		return strings.Join(all, ", ")
	}
	for i, step := range []struct {
		received, checksums, sent, drops int
		want                             string
	}{
		{9000, 9000, 9000, 9000, ""}, // before the start
		{9500, 9000, 9500, 9000, ""},
		{9600, 9000, 12573, 13427, "UDP send queue"},
		{9700, 9010, 12600, 13427, "UDP checksums, UDP send queue"},
		{9800, 9010, 12700, 13427, "UDP checksums"},
		{9900, 9010, 12800, 13427, "UDP checksums"},
		{9900, 9010, 12800, 13427, ""},
	} {
		if got := problems(step.received, step.checksums, step.sent, step.drops); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}
