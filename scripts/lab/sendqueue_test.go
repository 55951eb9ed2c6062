//go:build lab && linux

package lab

import (
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestSendQueue: what a queue of the relay's machine drops is counted and named, although the
// relay's system calls succeed.
func TestSendQueue(t *testing.T) {
	sendDrops, subject := "ferry_host_udp_send_drops_total", "UDP send queue: a queue of this machine"
	if *xdpFlag != "" { // What the program sends has no socket.
		sendDrops, subject = "ferry_host_queue_drops_total", "send queues: the queues of the interfaces"
	}
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(5, 100))
	if n := l.metric(sendDrops); n != 0 {
		t.Errorf("%.0f send drops before the queue is too small", n)
	}
	// A tenth of what the joiners are sent.
	if err := l.net.Relay.TC("qdisc add dev " + LinkClients + " root tbf rate 64kbit burst 2kb limit 4kb"); err != nil {
		t.Fatal(err) // needs CONFIG_NET_SCH_TBF
	}
	out := l.metric(datagramsOut)
	testkit.Eventually(t, "the queue drops datagrams", func() bool { return l.metric(sendDrops) > 500 })
	findings, err := exec.Command("ip", "netns", "exec", l.net.Relay.Name, ferry, "check", "--machine", "--role", "serve").CombinedOutput()
	if !regexp.MustCompile(`advice +` + subject + ` dropped`).Match(findings) {
		t.Errorf("ferry check --machine does not say it: %v\n%s", err, findings)
	}
	t.Logf("%.0f dropped of %.0f that the relay counts as sent", l.metric(sendDrops), l.metric(datagramsOut)-out)
	if err := l.net.Relay.TC("qdisc del dev " + LinkClients + " root"); err != nil {
		t.Fatal(err)
	}
	t.Log(f.Settle())
	if failed := l.metric("ferry_send_failed_total"); failed != 0 {
		t.Errorf("%.0f sends failed: this test decides nothing", failed)
	}
}

// TestWrongChecksums: the counter of datagrams that the kernel drops at the relay's sockets has
// those with a wrong checksum in it, if they are not very small, and others tell them apart.
func TestWrongChecksums(t *testing.T) {
	const checksumErrors = "ferry_host_udp_checksum_errors_total"
	l := newLab(t, nil)
	for _, size := range []int{64, 200} { // The kernel checks up to 68 bytes before it looks for a socket.
		packets := l.spoofedPackets(func() []byte { return make([]byte, size) })
		before := l.metric(checksumErrors)
		o := l.flood(1000, time.Second, func(n uint64) []byte {
			p := packets(n)
			p[len(p)-1] = 0xff
			return p
		})
		testkit.Eventually(t, "they are counted", func() bool { return l.metric(checksumErrors) >= before+float64(o.Sent) })
		wrong, drops, full := l.metric(checksumErrors)-before, l.metric(kernelDrops), l.metric("ferry_host_udp_queue_full_total")
		t.Logf("%d bytes: %.0f wrong checksums; %.0f dropped at sockets, %.0f for a full queue", size, wrong, drops, full)
		if full != 0 || (drops > 0) != (size == 200) {
			t.Errorf("%d bytes: %.0f dropped at sockets, %.0f for a full queue", size, drops, full)
		}
	}
}
