package blackbox

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func (f *ferry) ferryRuns(args ...string) (string, error) {
	cmd := exec.Command(binary, append(args, "--admin", f.admin)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// traceroute is what tshark says of each UDP datagram to or from some of the ports that a system picks.
var traceroute = regexp.MustCompile(`,?Possible traceroute: hop #\d+, attempt #\d+`)

// readCapture returns of each packet of a file: its message and its comment, by tshark with
// the dissector.
func readCapture(t *testing.T, file string) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testkit.Program(t, "tshark", "tshark"), "-n", "-X", "lua_script:../../../scripts/wireshark/ferry.lua",
		"-r", file, "-T", "fields", "-e", "_ws.col.Info", "-e", "frame.comment", "-e", "_ws.expert.message", "-e", "_ws.malformed.expert")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, &errs)
	}
	for line := range strings.Lines(string(out)) {
		lines = append(lines, traceroute.ReplaceAllString(strings.TrimRight(line, "\t\n"), ""))
	}
	return lines
}

// TestCapture: ferry ctl capture writes what the relay receives and sends for a match, by each
// transport, so that tshark decodes it, and no key; the relay refuses it unless it is allowed.
func TestCapture(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"udp", "dtls", "ws"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			f := dev(t, "--capture")
			m := f.matchBy(enginetest.UTP2, by)
			id := proto.AllocationID(m.host.Cred.ID).String()
			way := map[string]string{"udp": "udp4", "dtls": "dtls", "ws": "ws"}[by]
			file := filepath.Join(t.TempDir(), "match.pcapng")
			stop := make(chan struct{})
			talks := make(chan struct{})
			go func() {
				defer close(talks)
				for {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
						m.player.Send(m.host.Cred.ID, "content")
					}
				}
			}()
			defer func() { close(stop); <-talks }()
			for try := 0; ; try++ {
				if out, err := f.ferryRuns("ctl", "capture", id, "--seconds", "1", "-w", file); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				lines := readCapture(t, file)
				received := slices.ContainsFunc(lines, func(l string) bool {
					return strings.HasPrefix(l, "RELAY ") && strings.HasSuffix(l, "\treceived over "+way+": relayed")
				})
				sent := slices.ContainsFunc(lines, func(l string) bool {
					return strings.HasPrefix(l, "RELAY ") && strings.HasSuffix(l, "\tsent over "+way)
				})
				if received && sent {
					break
				}
				if try == 20 {
					t.Fatalf("captured\n%s", strings.Join(lines, "\n"))
				}
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for name, secret := range map[string][]byte{"key": m.host.Cred.Key[:], "connection data": m.player.Cred.ConnectionData[:]} {
				if bytes.Contains(content, secret[:8]) || bytes.Contains(content, secret[len(secret)-8:]) {
					t.Errorf("the file contains the %s", name)
				}
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		f := dev(t)
		m := f.matchBy(enginetest.UTP2, "udp")
		file := filepath.Join(t.TempDir(), "match.pcapng")
		if out, err := f.ferryRuns("ctl", "capture", proto.AllocationID(m.host.Cred.ID).String(), "-w", file); err == nil ||
			!strings.Contains(out, "captures are off") {
			t.Errorf("not allowed: %v, %s", err, out)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("there is a file nevertheless")
		}
	})
}

const adminToken = "the-operators-token-of-the-tests"

func (f *ferry) askAdmin(method, path string) (int, []byte) {
	f.t.Helper()
	was := f.token
	f.token = adminToken
	defer func() { f.token = was }()
	return f.ask(method, f.admin+path, "")
}
