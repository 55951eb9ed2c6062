package foreign

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// The tables as Linux on a little-endian machine shows them.
const (
	title = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	udp   = title +
		"  100: 00000000:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 11 2 0000000000000000 0\n" + // 0.0.0.0:7777, ours
		"  101: 00000000:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 12 2 0000000000000000 0\n" + // the same, not ours
		"  101: 00000000:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 12 2 0000000000000000 0\n" + // shown twice
		"  102: 017100CB:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 13 2 0000000000000000 0\n" + // 203.0.113.1:7777
		"  103: 0100007F:1E62 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 14 2 0000000000000000 0\n" + // another port
		"  104: 00000000:1E61 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 15 2 0000000000000000 0\n" + // another user
		"  105: rubbish\n"
	udp6 = title +
		"  106: 00000000000000000000000000000000:1E61 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 16 2 0000000000000000 0\n" + // [::]:7777
		"  107: B80D0120000000000000000001000000:1E61 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 17 2 0000000000000000 0\n" // [2001:db8::1]:7777
)

func proc(t *testing.T, inodes ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no /proc, and links need a privilege")
	}
	dir := t.TempDir()
	for _, d := range []string{"self/net", "self/fd"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"udp": udp, "udp6": udp6} {
		if err := os.WriteFile(filepath.Join(dir, "self/net", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, inode := range append(inodes, "") {
		target := "socket:[" + inode + "]"
		if inode == "" {
			target = "/dev/null"
		}
		if err := os.Symlink(target, filepath.Join(dir, "self/fd", string(rune('0'+i)))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		name, addrs string
		own         []string
		want        int
	}{
		{"the same, one more specific, and one of IPv6 that may hear IPv4", "0.0.0.0:7777", []string{"11"}, 3},
		{"all ours", "0.0.0.0:7777", []string{"11", "12", "13", "16"}, 0},
		{"another address", "198.51.100.1:7777", []string{"11", "12", "16"}, 0},
		{"our own address", "203.0.113.1:7777", []string{"11", "12", "16"}, 1},
		{"both families", "0.0.0.0:7777 [::]:7777", []string{"11", "16"}, 3},
		{"IPv6 only", "[::]:7777", []string{"16"}, 1},
		{"an unused port", "0.0.0.0:7779", []string{"11"}, 0},
		{"nothing ours, so no user", "0.0.0.0:7777", nil, 0},
	} {
		var addrs []netip.AddrPort
		for _, a := range strings.Fields(c.addrs) {
			addrs = append(addrs, netip.MustParseAddrPort(a))
		}
		if n, err := count(proc(t, c.own...), addrs); err != nil || n != c.want {
			t.Errorf("%s: %d (%v), want %d", c.name, n, err, c.want)
		}
	}
	if _, err := count(t.TempDir(), nil); err == nil {
		t.Error("no error without /proc")
	}
}

// TestHolder: the process with a socket at an address, by its descriptors.
func TestHolder(t *testing.T) {
	dir := proc(t, "11")
	table := title + "  1: 0100007F:1E63 00000000:0000 0A 0:0 0:0 0 1000 0 21 1\n" + // 127.0.0.1:7779, listens
		"  2: 0100007F:1E64 0100007F:1E65 01 0:0 0:0 0 1000 0 22 1\n" // 127.0.0.1:7780, connected
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "self/net/tcp"), []byte(table), 0o644),
		os.MkdirAll(filepath.Join(dir, "77/fd"), 0o755),
		os.WriteFile(filepath.Join(dir, "77/comm"), []byte("ferry\n"), 0o644), os.MkdirAll(filepath.Join(dir, "78"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for i, inode := range []string{"13", "21", "22"} {
		if err := os.Symlink("socket:["+inode+"]", filepath.Join(dir, "77/fd", strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		network, addr string
		found         bool
	}{
		{"udp", "203.0.113.1:7777", true}, {"udp", "203.0.113.1:7778", false}, {"udp", "198.51.100.1:7777", false},
		{"tcp", "127.0.0.1:7779", true}, {"tcp", "0.0.0.0:7779", true}, {"tcp", "127.0.0.1:7780", false}, {"tcp", "127.0.0.1:7777", false},
	} {
		h, ok := findHolder(dir, c.network, netip.MustParseAddrPort(c.addr))
		if ok != c.found || ok && h != (Holder{77, "ferry"}) {
			t.Errorf("%s %s: %+v, %t", c.network, c.addr, h, ok)
		}
	}
}

func TestParse(t *testing.T) {
	if s, ok := parse(strings.Split(udp6, "\n")[2]); !ok || s.local.String() != "[2001:db8::1]:7777" || s.uid != "1000" || s.inode != "17" {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, line := range []string{"", title, "1: 2 3 4 5 6 7 8 9 10", "1: 00:1E61 3 4 5 6 7 8 9 10", "1: 00000000:FFFFF 3 4 5 6 7 8 9 10",
		"1: 0000000000000000:1 3 4 5 6 7 8 9 10"} {
		if s, ok := parse(line); ok {
			t.Errorf("%q is %+v", line, s)
		}
	}
}
