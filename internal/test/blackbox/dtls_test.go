package blackbox

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

// event returns how often something happened to DTLS.
func (f *ferry) event(name string) float64 {
	f.t.Helper()
	return f.metric(`ferry_dtls_events_total{event="` + name + `"}`)
}

// openssl starts the client of OpenSSL.
func (a allocation) openssl(t *testing.T, key []byte) *wiretest.OpenSSL {
	t.Helper()
	return wiretest.StartOpenSSL(t, a.endpoint(t, "dtls"), a.AllocationID, key, "PSK")
}

// TestDTLSOpenSSL: openssl's client, given a real allocation's key and the text
// of its id, binds it; given another key it does not even get a session. After the end of
// the allocation it gets ERROR 4 in a new session.
func TestDTLSOpenSSL(t *testing.T) {
	t.Parallel()
	f := dev(t, "--bind-timeout", "1h") // Two programs have to start before the BIND.
	a, _ := f.allocate(4)
	cred := a.credentials(t)
	received := string(proto.BindReceived{}.Append(nil))

	wrong := slices.Clone(a.Key)
	wrong[20] ^= 1
	wrongKey := a.openssl(t, wrong)
	testkit.Eventually(t, "a Finished with a wrong key", func() bool { return f.event("drop_key") > 0 })
	if n := f.event("established"); n != 0 {
		t.Errorf("a wrong key made %v sessions", n)
	}
	testkit.Eventually(t, "the log says why", func() bool { return strings.Contains(f.Log.String(), "event=drop_key because=") })

	s := a.openssl(t, a.Key)
	testkit.Eventually(t, "a session", func() bool { return f.event("established") == 1 })
	for nonce := uint16(0); !s.HasReceived(received)(); nonce++ {
		if nonce == 20 {
			t.Fatalf("no BIND_RECEIVED; received %q; log:\n%s", s.Out.String(), f.Log.String())
		}
		if _, err := s.In.Write(enginetest.SignedBind(cred, nonce)); err != nil {
			t.Fatal(err)
		}
		testkit.Poll(testkit.WaitLimit, s.HasReceived(received))
	}
	ping := proto.Ping{ID: cred.ID, Number: 77}.Append(nil)
	if _, err := s.In.Write(ping); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the echo of a PING", s.HasReceived(string(ping)))
	if out := wrongKey.Out.String(); out != "" {
		t.Errorf("with a wrong key openssl received %q", out)
	}

	f.endAllocation(a, false)
	ended := string(proto.Error{ID: cred.ID, Code: proto.ErrorNotFound}.Append(nil))
	for tries := 0; ; tries++ { // A session without a BIND ends after 5 s.
		if tries == 5 {
			t.Fatalf("no ERROR 4; log:\n%s", f.Log.String())
		}
		sessions := f.event("unbindable")
		late := a.openssl(t, a.Key)
		testkit.Eventually(t, "a session of an ended allocation", func() bool { return f.event("unbindable") > sessions })
		if _, err := late.In.Write(enginetest.SignedBind(cred, 0)); err != nil {
			t.Fatal(err)
		}
		if testkit.Poll(5*time.Second, late.HasReceived(ended)) {
			break
		}
	}
}

// secure makes a session of DTLS on a socket.
func (a allocation) secure(t *testing.T, socket net.PacketConn) *wiretest.Conn {
	t.Helper()
	return wiretest.DTLS(t, socket, a.endpoint(t, "dtls"), [16]byte(a.AllocationIDBytes), a.Key)
}

// newSocket opens a socket at a local address.
func newSocket(t *testing.T, local string) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp4", local)
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

// TestDTLSPion: pion's client binds with the raw id. Another player's BIND in its
// session is ignored, and so are its messages in plain text; and when it starts a new
// session at the same address, its binding continues without a BIND.
func TestDTLSPion(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, code := f.allocate(4)
	other := f.join(code)
	socket := newSocket(t, "127.0.0.1:0")
	s := a.secure(t, socket)
	if err := s.Send(enginetest.SignedBind(other.credentials(t), 0)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the BIND of another allocation is refused", func() bool {
		return f.metric(`ferry_drops_total{reason="identity"}`) == 1
	})
	s.Bind(a.credentials(t), 0)

	plain := enginetest.SignedBind(a.credentials(t), 9)
	if _, err := socket.WriteTo(plain, net.UDPAddrFromAddrPort(f.udp)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what is plain is refused", func() bool { return f.metric(`ferry_drops_total{reason="plain"}`) == 1 })

	_ = s.Close()
	s = a.secure(t, newSocket(t, socket.LocalAddr().String()))
	ping := proto.Ping{ID: proto.AllocationID(a.AllocationIDBytes), Number: 5}.Append(nil)
	s.Ask(ping, func(got []byte) bool {
		if kind, _ := proto.ParseType(got); kind == proto.TypeError {
			t.Errorf("the new session received % x", got)
		}
		return bytes.Equal(got, ping)
	})
	if n := f.event("taken_over"); n != 1 {
		t.Errorf("%v sessions were taken over", n)
	}
}
