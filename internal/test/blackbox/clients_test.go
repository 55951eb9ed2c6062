package blackbox

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
)

func play(t *testing.T, v enginetest.Version, a allocation) *enginetest.UTP {
	t.Helper()
	return enginetest.Play(t, v, a.credentials(t))
}

func talk(t *testing.T, from, to *enginetest.UTP, content string) {
	t.Helper()
	from.Send(to.Cred.ID, content)
	testkit.Eventually(t, content+" arrives", to.HasReceived(from.Cred.ID, content))
}

// playBy is play by "udp", "dtls" or "ws". Neither a DTLS session nor a WebSocket
// is made a second time.
func playBy(t *testing.T, v enginetest.Version, connectionType string, a allocation) *enginetest.UTP {
	t.Helper()
	cred := a.credentials(t)
	switch connectionType {
	case "dtls":
		cred.Relay = tunnel(t, a.secure(t, newSocket(t, "127.0.0.1:0")))
	case "ws":
		conn, _, err := ws.Dial(t.Context(), "ws://"+a.endpoint(t, "ws").String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		cred.Relay = tunnel(t, wiretest.WebSocket(t, conn))
	}
	return enginetest.Play(t, v, cred)
}

// tunnel returns an address of loopback at which the client model reaches the relay
// by another way than UDP: each datagram is one message of that connection. What the
// connection does not take is lost. It ends with the connection.
func tunnel(t *testing.T, over *wiretest.Conn) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var client atomic.Pointer[netip.AddrPort]
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			client.Store(&from)
			_ = over.Send(slices.Clone(buf[:n]))
		}
	}()
	go func() {
		for m := range over.Got {
			_, _ = conn.WriteToUDPAddrPort(m, *client.Load()) // It speaks first.
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

var generations = []struct {
	v  enginetest.Version
	by []string
}{{enginetest.UTP1, []string{"udp", "dtls"}}, {enginetest.UTP2, []string{"udp", "dtls", "ws"}}}

// TestConnectionTypes: both generations of clients play a match by each connection
// type that they have, and leave it.
func TestConnectionTypes(t *testing.T) {
	t.Parallel()
	for _, g := range generations {
		for _, by := range g.by {
			t.Run(fmt.Sprintf("UTP%d by %s", g.v, by), func(t *testing.T) {
				t.Parallel()
				m := dev(t).matchBy(g.v, by)
				m.player.Leave(m.host.Cred.ID)
				testkit.Eventually(t, "the host forgets the player", m.host.HasPeers(0))
			})
		}
	}
}

// goesOn demands that data flows both ways again after a crash.
func (m match) goesOn(t *testing.T) {
	t.Helper()
	const content = "after the crash"
	var last time.Time
	testkit.Eventually(t, "the match goes on", func() bool {
		if time.Since(last) > 20*time.Millisecond {
			last = time.Now()
			m.host.Send(m.player.Cred.ID, content)
			m.player.Send(m.host.Cred.ID, content)
		}
		return m.player.HasReceived(m.host.Cred.ID, content)() && m.host.HasReceived(m.player.Cred.ID, content)()
	})
	m.talk(t, "as before")
}

// TestCrashClients: after kill -9 a match of each generation goes on over UDP, in
// its way: 2.x by a BIND with the next nonce when it gets ERROR 3; 1.x by the same
// BIND as before after silence, for which the relay stops after three ERROR 3.
func TestCrashClients(t *testing.T) {
	t.Parallel()
	for _, g := range generations {
		t.Run(fmt.Sprintf("UTP%d", g.v), func(t *testing.T) {
			t.Parallel()
			p, udp := newPlace(t), testkit.FreeAddr(t, "udp")
			f := p.serve("--udp", udp)
			m := f.matchBy(g.v, "udp")
			clients := []*enginetest.UTP{m.host, m.player}
			before := map[*enginetest.UTP]uint16{}
			for _, u := range clients {
				u.SetQuiet(true) // The time until the relay serves is not silence that it notices.
				_, before[u] = u.Binds()
			}
			f.Crash()
			f = p.serve("--udp", udp)
			if g.v == enginetest.UTP1 {
				for _, u := range clients {
					testkit.Eventually(t, "three ERROR 3", func() bool {
						u.Send(m.host.Cred.ID, "not bound")
						return len(u.Log()) >= 3
					})
					u.SetQuiet(false)
				}
			}
			m.goesOn(t)
			for _, u := range clients {
				binds, nonce := u.Binds()
				if log := u.Log(); len(log) == 0 || slices.ContainsFunc(log, func(line string) bool { return line != "error 3" }) {
					t.Errorf("its log is %q, want ERROR 3 only", log)
				}
				if again := nonce > before[u]; again != (g.v == enginetest.UTP2) || binds < 2 {
					t.Errorf("%d BINDs, nonce %d, before the crash %d", binds, nonce, before[u])
				}
			}
			f.Stop()
		})
	}
}

// TestCrashDTLS: clients that never handshake again, as Unity's before 2.7,
// play on in the DTLS sessions that they had before kill -9.
func TestCrashDTLS(t *testing.T) {
	t.Parallel()
	for _, g := range generations {
		t.Run(fmt.Sprintf("UTP%d", g.v), func(t *testing.T) {
			t.Parallel()
			p, udp := newPlace(t), testkit.FreeAddr(t, "udp")
			f := p.serve("--udp", udp)
			m := f.matchBy(g.v, "dtls")
			f.Crash()
			f = p.serve("--udp", udp)
			m.goesOn(t)
			for _, u := range []*enginetest.UTP{m.host, m.player} {
				if u.HasLogged("error 1")() || u.HasLogged("error 4")() {
					t.Errorf("its log is %q", u.Log())
				}
			}
			if n := f.event("established"); n != 0 {
				t.Errorf("%v handshakes after the crash", n)
			}
			f.Stop()
		})
	}
}
