package main

import (
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestFrames: all relays carry frames from XDP, pairs and stars; the programs in the kernel
// carry nearly all of them.
func TestFrames(t *testing.T) {
	need(t, "ip")
	need(t, "gcc")
	need(t, "clang-14")
	need(t, "ethtool")
	testkit.NeedRoot(t, "making network namespaces")
	if runtime.GOARCH != "amd64" {
		t.Skip("the fast path is for amd64")
	}
	runtime.LockOSThread()
	for _, shape := range []string{"pairs", "star"} {
		out := t.TempDir()
		args := []string{
			"--root", "../../..", "--out", out, "--rounds", "1", "--duration", "300ms", "--warmup", "0s", "--retries", "0",
			"--allocations", "44", "--load", "1000x4,2000x2", "--shape", shape,
		}
		missing := framesPeers
		for range 5 { // A run is as short as a machine may stand still.
			if err := frames(t.Context(), args); err != nil {
				t.Fatal(err)
			}
			if missing = withoutTraffic(t, out); len(missing) == 0 {
				break
			}
		}
		if len(missing) > 0 {
			t.Errorf("%s: without traffic: %v", shape, missing)
		}
	}
}

func withoutTraffic(t *testing.T, dir string) (list []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, framesFile))
	if err != nil {
		t.Fatal(err)
	}
	var d framesDocument
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Samples) != 2*len(framesPeers) {
		t.Fatalf("%d samples", len(d.Samples))
	}
	for _, s := range d.Samples {
		if s.Received*2 < s.Sent || s.Received == 0 || s.CPU <= 0 || s.byProgram() && s.Kernel*2 < s.Received {
			list = append(list, s.String())
		}
	}
	return list
}

func TestFramesOptions(t *testing.T) {
	o, err := parseFramesOptions([]string{"--load", "1000x1, 120000x32", "--allocations", "1000,1000000", "--out", "/x"}, io.Discard)
	if err != nil || len(o.loads) != 2 || o.loads[1] != (load{120_000, 32}) || o.allocations[1] != 1_000_000 || o.out != "/x" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range []string{"--load 1000", "--load 1000x0", "--load 1000x257", "--allocations 3", "--allocations 2000000",
		"--shape ring", "--only pion", "extra", "--load ,"} {
		if _, err := parseFramesOptions(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}

// TestPlayerAddresses: the C loop finds the peer of a player by its address.
func TestPlayerAddresses(t *testing.T) {
	for _, i := range []int{0, 2, 254, 1000} {
		if a, b := playerAddr(i, 1).As4(), playerAddr(i+1, 1).As4(); a[3]^1 != b[3] || [3]byte(a[:3]) != [3]byte(b[:3]) {
			t.Errorf("players %d and %d: %v, %v", i, i+1, a, b)
		}
	}
	if host, player := playerAddr(11, starPlayers), playerAddr(14, starPlayers); host != netip.MustParseAddr("10.0.2.0") ||
		player != netip.MustParseAddr("10.0.2.3") {
		t.Errorf("host %v, player %v", host, player)
	}
	var p framePlayer
	p.place(25, starPlayers)
	if p.host != 22 || p.first != 25 {
		t.Errorf("player 25: host %d, first %d", p.host, p.first)
	}
	p.place(22, starPlayers)
	if p.host != 22 || p.first != 23 {
		t.Errorf("host 22: host %d, first %d", p.host, p.first)
	}
}

func TestReadPlayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "players")
	for text, want := range map[string]bool{"": true, "short": false, strings.Repeat("i", 16) + "\x00\x02ab\x00\x01c": true,
		strings.Repeat("i", 16) + "\x00\x02ab\x00\x09c": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readPlayers(file, 1); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestChecksum(t *testing.T) {
	// A header whose checksum, 0xb861, is known.
	header := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := checksum(0, header); got != 0xb861 {
		t.Errorf("%#x", got)
	}
}
