package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
	"github.com/ferryrelay/ferry/internal/test/redistest"
)

// TestCheckMachine plants faults. Each is found, with what to do; without it the check is ok.
func TestCheckMachine(t *testing.T) {
	t.Parallel()
	sound := func(t *testing.T) Checker {
		c := local()
		c.Advertise = []config.Host{advertisedAt(t, "127.0.0.1")}
		return Checker{
			Config: c, Mode: Serve, Now: time.Now,
			Clock: func() sock.ClockState { return sock.ClockState{Known: true, Synchronized: true} },
			Lookup: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil
			},
		}
	}
	expect := func(t *testing.T, k Checker, subject, state, text string) {
		t.Helper()
		expectFinding(t, k.Check(t.Context(), true, false), subject, state, text)
	}
	t.Run("sound", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		for _, x := range k.Check(t.Context(), true, false) {
			if x.State == stateProblem {
				t.Errorf("%+v", x)
			}
		}
		expect(t, k, "settings", stateOK, "would start")
		expect(t, k, "clock", stateOK, "synchronized")
		expect(t, k, "udp 127.0.0.1", stateOK, "free")
		expect(t, k, "advertise 127.0.0.1", stateOK, "of this machine")
	})
	t.Run("no token", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.Tokens = nil
		expect(t, k, "settings", stateProblem, "no token is configured")
	})
	t.Run("clock", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Clock = func() sock.ClockState { return sock.ClockState{Known: true} }
		expect(t, k, "clock", stateAdvice, "not synchronized")
		k.Clock = func() sock.ClockState { return sock.ClockState{Known: true, Synchronized: true, MaxError: time.Minute} }
		expect(t, k, "clock", stateAdvice, "may be 1m0s")
	})
	t.Run("ports", func(t *testing.T) {
		t.Parallel()
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer udp.Close()
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		k := sound(t)
		k.Config.UDP = []config.Addr{addr(udp.LocalAddr().String())}
		k.Config.HTTP = addr(tcp.Addr().String())
		expect(t, k, "udp", stateProblem, fmt.Sprintf("(process %d) uses the port", os.Getpid()))
		expect(t, k, "http", stateProblem, fmt.Sprintf("(process %d) uses the port", os.Getpid()))
		k.Config.HTTP = addr("203.0.113.7:7777")
		expect(t, k, "http", stateProblem, "does not have the address")
	})
	t.Run("a ferry is running", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		r := start(t, options(k.Config, Serve))
		k.Config.UDP = []config.Addr{addr(r.relay.engine.Addr().String())}
		k.Config.Admin = addr(strings.TrimPrefix(r.AdminURL(), "http://"))
		expect(t, k, "udp", stateOK, "a ferry is ready")
		expect(t, k, "admin", stateOK, "a ferry is ready")
	})
	t.Run("address translation", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.Advertise = []config.Host{advertisedAt(t, "203.0.113.7")}
		expect(t, k, "advertise 203.0.113.7", stateAdvice, "NAT")
		expect(t, k, "advertise 203.0.113.7", stateAdvice, "allow_private_sources")
		k.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.4"), netip.MustParseAddr("203.0.113.7")}
		expect(t, k, "advertise 203.0.113.7", stateOK, "of this machine")
	})
	t.Run("directories", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.StateDir = filepath.Join(t.TempDir(), "not", "yet")
		k.Config.RuntimeDir = t.TempDir()
		expect(t, k, "state_dir "+k.Config.StateDir, stateOK, "free")
		for _, c := range []struct {
			name, text string
			left       machine.Space
			err        error
			state      string
		}{
			{"no block", "has 0 KiB free, and the relay needs 1024 KiB", machine.Space{Inodes: 1000, CountsInodes: true}, nil, stateProblem},
			{"no inode", "has 0 inodes free", machine.Space{Bytes: 1 << 30, CountsInodes: true}, nil, stateProblem},
			{"no limit of inodes", "1024 MiB free", machine.Space{Bytes: 1 << 30}, nil, stateOK},
			{"not known", "not known", machine.Space{}, errors.ErrUnsupported, stateSkipped},
		} {
			asked := map[string]bool{}
			k.Space = func(dir string) (machine.Space, error) { asked[dir] = true; return c.left, c.err }
			expect(t, k, "state_dir", c.state, c.text)
			expect(t, k, "runtime_dir", c.state, c.text)
			if want := filepath.Dir(filepath.Dir(k.Config.StateDir)); !asked[want] || !asked[k.Config.RuntimeDir] {
				t.Errorf("%s: asked about %v", c.name, asked)
			}
		}
		if runtime.GOOS == "linux" { // What is written anew needs the space of the old file, without its holes.
			k.Space = func(string) (machine.Space, error) { return machine.Space{Bytes: 1 << 20}, nil }
			file := filepath.Join(k.Config.RuntimeDir, "allocations")
			if err := errors.Join(os.WriteFile(file, make([]byte, 64<<10), 0o600), os.Truncate(file, 1<<30)); err != nil {
				t.Fatal(err)
			}
			expect(t, k, "runtime_dir", stateProblem, "has 1024 KiB free, and the relay needs 1088 KiB")
		}
	})
	t.Run("certificate", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.TLSCert, k.Config.TLSKey = filepath.Join(t.TempDir(), "cert.pem"), "key.pem"
		expect(t, k, "tls_cert", stateProblem, "no such file")
		k.Config.TLSCert, k.Config.TLSKey, _ = newCertificate(t)
		expect(t, k, "tls_cert", stateOK, "valid until") // a day of 25 hours
		k.Now = func() time.Time { return time.Now().Add(20 * time.Hour) }
		expect(t, k, "tls_cert", stateAdvice, "ends in 0 days")
		k.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
		expect(t, k, "tls_cert", stateProblem, "it expired at")
		k.Now = time.Now
		k.Config.AdvertiseName = config.Name{Host: "other.example.org"}
		expect(t, k, "tls_cert", stateProblem, "not for the name other.example.org")
		if err := os.WriteFile(k.Config.TLSKey, []byte("nothing"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, k, "tls_cert", stateProblem, "PEM")
	})
	t.Run("name", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.AdvertiseName = config.Name{Host: "relay.example.org"}
		expect(t, k, "advertise_name", stateOK, "resolves to 203.0.113.7")
		k.Lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
		expect(t, k, "advertise_name", stateProblem, "does not resolve")
	})
	t.Run("acme", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Config.ACME, k.Config.HTTP, k.Config.ACMEServer = true, addr("127.6.0.1:0"), "https://ca.example.org/dir"
		k.Config.Advertise = []config.Host{advertisedAt(t, "127.6.0.1")}
		switch l, err := net.Listen("tcp", "127.6.0.1:80"); {
		case errors.Is(err, syscall.EACCES):
			expect(t, k, "acme 127.6.0.1:80", stateProblem, "needs a privilege")
		case err != nil:
			t.Fatal(err)
		default:
			expect(t, k, "acme 127.6.0.1:80", stateProblem, fmt.Sprintf("(process %d) uses the port", os.Getpid()))
			l.Close()
			expect(t, k, "acme 127.6.0.1:80", stateOK, "can listen there")
		}
		expect(t, k, "acme", stateSkipped, "the authority reaches TCP port 80 of 127.6.0.1")
		k.Config.AdvertiseName = config.Name{Host: "relay.example.org", Port: 443}
		expect(t, k, "acme", stateSkipped, "the authority reaches TCP port 443 of relay.example.org")
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		k := sound(t)
		k.Mode, k.Config.Store = API, "redis://127.0.0.1:1"
		expect(t, k, "store", stateProblem, "refused")
		k.Config.Store = config.Secret("redis://" + redistest.Start(t).Addr)
		expect(t, k, "store", stateOK, "it answers")
	})
}

// expectFinding fails unless there is such a finding. If something is to be done, the finding says what.
func expectFinding(t *testing.T, all []Finding, subject, state, text string) {
	t.Helper()
	for _, f := range all {
		if strings.HasPrefix(f.Subject, subject) && f.State == state && strings.Contains(f.Text, text) {
			if f.Do == "" && (state == stateProblem || state == stateAdvice) || f.Do != "" && state == stateOK {
				t.Errorf("%+v: what to do", f)
			}
			return
		}
	}
	t.Errorf("no %s of %s with %q in\n%+v", state, subject, text, all)
}

func advertisedAt(t *testing.T, text string) (h config.Host) {
	t.Helper()
	if err := h.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return h
}
