package capture

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestFile: tshark reads what was written, with valid checksums, to the nanosecond.
func TestFile(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_789)
	ap := netip.MustParseAddrPort
	file, err := os.Create(filepath.Join(t.TempDir(), "match.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(file, "one match")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, c := range []struct {
		privateapi.Captured
		ports   string // from and to
		ip      string // status of IP's checksum, which IPv6 has not
		comment string
	}{
		{privateapi.Captured{Transport: "udp4", Player: ap("192.0.2.1:4000"), Relay: ap("198.51.100.1:7777"), Outcome: "relayed"},
			"4000\t7777", "1",
			"received over udp4: relayed"},
		{privateapi.Captured{Transport: "udp4", Player: ap("192.0.2.1:4000"), Relay: ap("[::]:7777"), Sent: true}, "7777\t4000",
			"1", "sent over udp4"},
		{privateapi.Captured{Transport: "udp6", Player: ap("[2001:db8::7]:4000"), Relay: ap("[2001:db8::1]:7777"), Outcome: "relayed"},
			"4000\t7777", "",
			"received over udp6: relayed"},
		{privateapi.Captured{Transport: "dtls", Session: 9, Sent: true}, "7777\t49152", "", "sent over dtls"},
	} {
		for size := range 6 { // odd and even, and each padding
			c.Time, c.Message = at, []byte("\xdarelay"[:size])
			if err := w.Write(&c.Captured); err != nil {
				t.Fatal(err)
			}
			want = append(want, strings.Join([]string{"1700000000.123456789", c.ip, "1", c.ports, c.comment}, "\t"))
		}
	}
	if err := w.Close(7); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", file.Name(), "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields"}
	for _, f := range []string{"frame.time_epoch", "ip.checksum.status", "udp.checksum.status", "udp.srcport",
		"udp.dstport", "frame.comment"} {
		args = append(args, "-e", f)
	}
	out, err := exec.CommandContext(t.Context(), testkit.Program(t, "tshark", "tshark"), args...).Output()
	if err != nil || strings.TrimSpace(string(out)) != strings.Join(want, "\n") {
		t.Errorf("%v\n%s\nwant\n%s", err, out, strings.Join(want, "\n"))
	}
}
