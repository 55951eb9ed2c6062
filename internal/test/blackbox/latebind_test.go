package blackbox

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// lateBinder is a player by DTLS that binds as Unity's client does: a handshake, and a
// BIND that is repeated each second.
type lateBinder struct {
	t *testing.T
	a allocation
	// beforeFinished and beforeBind are called once, before the last flight of the
	// client and before its BIND.
	beforeFinished, beforeBind func()
}

// finishedHook is the socket of a client. It calls before ahead of the first datagram
// with an encrypted record.
type finishedHook struct {
	net.PacketConn
	before func()
}

func (h *finishedHook) WriteTo(b []byte, to net.Addr) (int, error) {
	for rest := b; h.before != nil && len(rest) > 13; rest = rest[min(len(rest), 13+int(rest[11])<<8+int(rest[12])):] {
		if rest[4] == 1 { // the epoch
			h.before()
			h.before = nil
		}
	}
	return h.PacketConn.WriteTo(b, to)
}

// answer returns the code of the ERROR that the player gets for its BIND, from a local
// address, and how long it waited for that.
func (l lateBinder) answer(local string) (code proto.ErrorCode, waited time.Duration) {
	l.t.Helper()
	sock, err := net.ListenPacket("udp", net.JoinHostPort(local, "0"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { sock.Close() })
	start := time.Now()
	c := l.a.secure(l.t, &finishedHook{sock, l.beforeFinished})
	if l.beforeBind != nil {
		l.beforeBind()
	}
	c.Ask(enginetest.SignedBind(l.a.credentials(l.t), 0), func(got []byte) bool {
		m, err := proto.ParseError(got)
		if err != nil || !bytes.Equal(m.ID[:], l.a.AllocationIDBytes) {
			l.t.Fatalf("%v: received % x", err, got)
		}
		code = m.Code
		return true
	})
	return code, time.Since(start)
}

func (f *ferry) lives(a allocation) bool {
	status, _ := f.ask("GET", f.admin+"/allocations/"+a.AllocationID, "")
	return status == 200
}

func (f *ferry) endAllocation(a allocation, kick bool) {
	f.t.Helper()
	method, url := "DELETE", f.admin+"/allocations/"+a.AllocationID
	if kick {
		method, url = "POST", url+"/kick"
	}
	if status, body := f.ask(method, url, ""); status != 200 {
		f.t.Fatalf("%s %s: %d %s", method, url, status, body)
	}
	testkit.Eventually(f.t, "the end of the allocation", func() bool { return !f.lives(a) })
}

// TestLateBindDTLS: a BIND over DTLS after the end of its allocation gets ERROR 4, as
// over UDP, whatever ended it and when, so that the game knows that it must join again.
func TestLateBindDTLS(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1", "::1"} {
		f := dev(t, "--udp", fmt.Sprintf("[%s]:0", at), "--bind-timeout", "1m")
		if strings.Contains(at, ".") {
			f = dev(t, "--bind-timeout", "1m")
		}
		match := func() (host, joiner allocation) {
			host, code := f.allocate(4)
			return host, f.join(code)
		}
		for _, c := range []struct {
			name       string
			host, kick bool
			when       string
		}{
			{"closed host", true, false, "before the handshake"},
			{"closed host", true, false, "in the handshake"},
			{"closed host", true, false, "after the handshake"},
			{"closed joiner", false, false, "before the handshake"},
			{"kicked joiner", false, true, "before the handshake"},
			{"kicked joiner", false, true, "in the handshake"},
			{"kicked joiner", false, true, "after the handshake"},
		} {
			t.Run(strings.ReplaceAll(at+" "+c.name+" "+c.when, " ", "_"), func(t *testing.T) {
				host, joiner := match()
				l := lateBinder{t: t, a: joiner}
				if c.host {
					l.a = host
				}
				end := func() { f.endAllocation(l.a, c.kick) }
				switch c.when {
				case "before the handshake":
					end()
				case "in the handshake":
					l.beforeFinished = end
				default:
					l.beforeBind = end
				}
				code, waited := l.answer(at)
				if code != proto.ErrorNotFound {
					t.Errorf("ERROR %d", code)
				}
				t.Logf("ERROR %d after %v", code, waited.Round(time.Millisecond))
			})
		}
	}
}

// TestLateBindDTLSTimeout: the same for a host and a player that did not bind in time, as
// in a lobby that waits too long, also after a crash of the relay.
func TestLateBindDTLSTimeout(t *testing.T) {
	t.Parallel()
	p, udp := newPlace(t), testkit.FreeAddr(t, "udp")
	f := p.serve("--udp", udp, "--bind-timeout", "1s")
	host, code := f.allocate(4)
	joiner := f.join(code)
	testkit.Eventually(t, "the end of both", func() bool { return !f.lives(host) && !f.lives(joiner) })
	for run := range 2 {
		for _, a := range []allocation{host, joiner} {
			if code, _ := (lateBinder{t: t, a: a}).answer("127.0.0.1"); code != proto.ErrorNotFound {
				t.Errorf("ERROR %d", code)
			}
		}
		if n := f.event("unbindable"); n != 2 {
			t.Errorf("%v sessions of ended allocations", n)
		}
		if why := f.why(host.AllocationID); run == 0 && !strings.Contains(why, "and its BIND came too late") {
			t.Error(why)
		}
		f.Crash()
		f = p.serve("--udp", udp)
	}
}
