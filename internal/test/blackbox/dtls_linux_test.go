package blackbox

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// overhears keeps the first datagram that is sent.
type overhears struct {
	net.PacketConn
	first []byte
}

func (o *overhears) WriteTo(b []byte, to net.Addr) (int, error) {
	if o.first == nil {
		o.first = bytes.Clone(b)
	}
	return o.PacketConn.WriteTo(b, to)
}

// rss returns the resident memory of the process in bytes.
func (f *ferry) rss() int {
	f.t.Helper()
	page, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.Cmd.Process.Pid))
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "VmRSS:" {
			kib, err := strconv.Atoi(words[1])
			if err != nil {
				f.t.Fatal(err)
			}
			return kib << 10
		}
	}
	f.t.Fatal("no VmRSS in /proc")
	return 0
}

// TestDTLSReplayedHellos: a hundred thousand replays of a real client's
// ClientHello, from many addresses, leave memory as it is, and honest players
// get in meanwhile.
func TestDTLSReplayedHellos(t *testing.T) {
	t.Parallel()
	const replays, honest, burst, most = 100_000, 5, 200, 2_000_000
	// Nobody but the flood talks, for as long as it takes.
	f := dev(t, "--host-alone-timeout", "1h")
	a, _ := f.allocate(4)
	sock, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ear := &overhears{PacketConn: sock}
	a.secure(t, ear).Bind(a.credentials(t), 0)
	var flood []net.PacketConn
	for i := range 500 {
		c, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.%d.%d:0", 1+i/250, 1+i%250))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flood = append(flood, c)
	}
	sent := 0
	until := func(hellos int) {
		to := net.UDPAddrFromAddrPort(f.udp)
		for f.event("hello") < float64(hellos) {
			for range burst {
				if _, err := flood[sent%len(flood)].WriteTo(ear.first, to); err != nil {
					t.Fatal(err)
				}
				sent++
			}
			if sent > most {
				t.Fatalf("%v of %d hellos were received", f.event("hello"), sent)
			}
		}
	}
	until(5000)
	before := f.rss()
	for i := range honest {
		until((i + 1) * replays / honest)
		player, _ := f.allocate(1)
		s := player.secure(t, newSocket(t, "127.0.0.1:0"))
		s.Bind(player.credentials(t), 0)
	}
	after := f.rss()
	t.Logf("%d replays sent, %v received, %v cookies, %v answered, %v dropped in front of the queue; RSS %+d KiB",
		sent, f.event("hello"), f.event("cookie_sent"), f.event("answered"), f.event("drop_queue"), (after-before)>>10)
	if after > before+16<<20 {
		t.Errorf("RSS grew from %d to %d KiB", before>>10, after>>10)
	}
	if n := f.metric("ferry_dtls_sessions"); n != honest+1 {
		t.Errorf("%v sessions", n)
	}
}
