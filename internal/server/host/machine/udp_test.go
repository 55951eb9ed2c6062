package machine

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

const snmp = `Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 9000 1 2 3573 100 4427 50 0 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
UdpLite: 7 7 7 7 7 7 7 7 7
`

const snmp6 = "Ip6InReceives \t4\nUdp6InDatagrams \t1000\nUdp6OutDatagrams \t10\nUdp6RcvbufErrors \t3\nUdp6SndbufErrors \t5\nUdp6InCsumErrors \t2\nUdpLite6InDatagrams 9\n"

// TestUDP: the counters of both families are added, and each kind of loss has its own line.
func TestUDP(t *testing.T) {
	t.Parallel()
	root := func(files map[string]string) fstest.MapFS {
		fsys := fstest.MapFS{}
		for name, text := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		return fsys
	}
	both := root(map[string]string{"proc/self/net/snmp": snmp, "proc/self/net/snmp6": snmp6})
	want := UDP{Known: true, Received: 10_000, Sent: 3583, QueueFull: 103, ChecksumErrors: 52, SendDrops: 4432}
	c := ReadUDP(both)
	if c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	if v4 := ReadUDP(root(map[string]string{"proc/self/net/snmp": snmp})); v4.SendDrops != 4427 || !v4.Known {
		t.Errorf("without IPv6: %+v", v4)
	}
	if none := ReadUDP(root(nil)); none != (UDP{}) || none.Losses() != nil {
		t.Errorf("without a file: %+v", none)
	}
	if again := c.Since(UDP{Sent: 3000, SendDrops: 4000}); again.Sent != 583 || again.SendDrops != 432 || !again.Known {
		t.Errorf("%+v", again)
	}
	lines := c.Losses()
	for i, want := range []string{"advice: UDP receive queues: 103 of 10103", "advice: UDP checksums: 52 of 10052",
		"advice: UDP send queue: a queue of this machine dropped 4432 of 8015"} {
		if i >= len(lines) || !strings.HasPrefix(format(lines[i]), want) {
			t.Errorf("%v, want %q", lines, want)
		}
	}
	for _, l := range (UDP{Known: true, Received: 1 << 20, Sent: 1 << 20, QueueFull: 9, ChecksumErrors: 9, SendDrops: 9}).Losses() {
		if l.Change != "" {
			t.Errorf("nine in a million: %v", l)
		}
	}
	if report := report(both, plan); !strings.Contains(report, "UDP send queue") {
		t.Errorf("the report lacks it:\n%s", report)
	}
	if _, err := os.Stat("/proc/self/net/snmp"); err == nil && !ReadUDP(os.DirFS("/")).Known {
		t.Error("the counters of this machine cannot be read")
	}
}
