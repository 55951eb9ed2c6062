package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestDoctor plants faults. Each is found, with what to do; without it the check is ok.
func TestDoctor(t *testing.T) {
	t.Parallel()
	sound := func(t *testing.T) Doctor {
		c := local()
		c.Advertise = []config.Host{advertisedAt(t, "127.0.0.1")}
		return Doctor{
			Config: c, Mode: Serve, Now: time.Now,
			Clock: func() sock.ClockState { return sock.ClockState{Known: true, Synchronized: true} },
			Lookup: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil
			},
		}
	}
	expect := func(t *testing.T, d Doctor, subject, state, text string) {
		t.Helper()
		var all []Diagnosis
		if !testkit.Poll(testkit.WaitLimit, func() bool { // A probe may be lost.
			all = d.Examine(t.Context())
			for _, x := range all {
				if strings.HasPrefix(x.Subject, subject) && x.State == state && strings.Contains(x.Text, text) {
					if (x.Do == "") != (state == stateOK) {
						t.Errorf("%+v: what to do", x)
					}
					return true
				}
			}
			return false
		}) {
			t.Errorf("no %s of %s with %q in\n%+v", state, subject, text, all)
		}
	}
	t.Run("sound", func(t *testing.T) {
		d := sound(t)
		for _, x := range d.Examine(t.Context()) {
			if x.State == stateProblem {
				t.Errorf("%+v", x)
			}
		}
		expect(t, d, "settings", stateOK, "would start")
		expect(t, d, "clock", stateOK, "synchronized")
		expect(t, d, "udp 127.0.0.1", stateOK, "free")
		expect(t, d, "advertise 127.0.0.1", stateOK, "of this machine")
		expect(t, d, "from outside", stateSkipped, "another network")
	})
	t.Run("no token", func(t *testing.T) {
		d := sound(t)
		d.Config.Tokens = nil
		expect(t, d, "settings", stateProblem, "no token is configured")
	})
	t.Run("clock", func(t *testing.T) {
		d := sound(t)
		d.Clock = func() sock.ClockState { return sock.ClockState{Known: true} }
		expect(t, d, "clock", stateAdvice, "not synchronized")
		d.Clock = func() sock.ClockState { return sock.ClockState{Known: true, Synchronized: true, MaxError: time.Minute} }
		expect(t, d, "clock", stateAdvice, "may be 1m0s")
	})
	t.Run("ports", func(t *testing.T) {
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
		d := sound(t)
		d.Config.UDP = []config.Addr{addr(udp.LocalAddr().String())}
		d.Config.HTTP = addr(tcp.Addr().String())
		expect(t, d, "udp", stateProblem, fmt.Sprintf("(process %d) uses the port", os.Getpid()))
		expect(t, d, "http", stateProblem, fmt.Sprintf("(process %d) uses the port", os.Getpid()))
		d.Config.HTTP = addr("203.0.113.7:7777")
		expect(t, d, "http", stateProblem, "does not have the address")
	})
	t.Run("a ferry is running", func(t *testing.T) {
		d := sound(t)
		r := start(t, options(d.Config, Serve))
		d.Config.UDP = []config.Addr{addr(r.relay.engine.Addr().String())}
		d.Config.Admin = addr(strings.TrimPrefix(r.AdminURL(), "http://"))
		expect(t, d, "udp", stateOK, "a ferry is ready")
		expect(t, d, "admin", stateOK, "a ferry is ready")
	})
	t.Run("address translation", func(t *testing.T) {
		d := sound(t)
		d.Config.Advertise = []config.Host{advertisedAt(t, "203.0.113.7")}
		expect(t, d, "advertise 203.0.113.7", stateAdvice, "NAT")
		expect(t, d, "advertise 203.0.113.7", stateAdvice, "allow_private_sources")
		d.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.4"), netip.MustParseAddr("203.0.113.7")}
		expect(t, d, "advertise 203.0.113.7", stateOK, "of this machine")
	})
	t.Run("private sources", func(t *testing.T) {
		d := sound(t)
		dropped, storing := 0, true
		running := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stats" && r.Header.Get("Authorization") == "Bearer "+secret {
				fmt.Fprintf(w, `{"state_complete":%t,"drops":{"forbidden":7,"private":%d}}`, storing, dropped)
			}
		}))
		defer running.Close()
		d.Config.Admin = addr(running.Listener.Addr().String())
		d.Config.AdminToken = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(d.Config.AdminToken, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, x := range d.Examine(t.Context()) {
			if x.Subject == "private sources" && x.State != stateOK {
				t.Errorf("without a drop: %+v", x)
			}
		}
		expect(t, d, "state file", stateOK, "stores what")
		storing = false
		expect(t, d, "state file", stateProblem, "cannot write it")
		dropped = 4711
		expect(t, d, "private sources", stateAdvice, "4711 datagrams")
		all := d.Examine(t.Context())
		if i := slices.IndexFunc(all, func(x Diagnosis) bool { return x.Subject == "private sources" }); !strings.Contains(all[i].Do,
			"allow_private_sources") {
			t.Errorf("%+v", all[i])
		}
	})
	t.Run("certificate", func(t *testing.T) {
		d := sound(t)
		d.Config.TLSCert, d.Config.TLSKey = filepath.Join(t.TempDir(), "cert.pem"), "key.pem"
		expect(t, d, "tls_cert", stateProblem, "no such file")
		d.Config.TLSCert, d.Config.TLSKey, _ = newCertificate(t)
		expect(t, d, "tls_cert", stateAdvice, "ends in 0 days")
		d.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
		expect(t, d, "tls_cert", stateProblem, "it expired at")
		d.Now = time.Now
		d.Config.AdvertiseName = config.Name{Host: "other.example.org"}
		expect(t, d, "tls_cert", stateProblem, "not for the name other.example.org")
		if err := os.WriteFile(d.Config.TLSKey, []byte("nothing"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, d, "tls_cert", stateProblem, "PEM")
	})
	t.Run("name", func(t *testing.T) {
		d := sound(t)
		d.Config.AdvertiseName = config.Name{Host: "relay.example.org"}
		expect(t, d, "advertise_name", stateOK, "resolves to 203.0.113.7")
		d.Lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
		expect(t, d, "advertise_name", stateProblem, "does not resolve")
	})
	t.Run("store", func(t *testing.T) {
		d := sound(t)
		d.Mode, d.Config.Store = API, "redis://127.0.0.1:1"
		expect(t, d, "store", stateProblem, "refused")
		d.Config.Store = config.Secret("redis://" + redistest.Start(t).Addr)
		expect(t, d, "store", stateOK, "it answers")
	})
}

func advertisedAt(t *testing.T, text string) (h config.Host) {
	t.Helper()
	if err := h.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return h
}
