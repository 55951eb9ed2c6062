package csharp

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/proto"
)

func play(t *testing.T, url, token, code string) *clienttest.Program {
	t.Helper()
	return clienttest.Start(t, compile(t, "Play.cs")(url, token, code))
}

// connected starts a player, which has exchanged a message with its host.
func connected(t *testing.T, url, code string) *clienttest.Program {
	t.Helper()
	g := play(t, url, playerToken, code)
	g.Do("connect")
	g.Expect("connected")
	g.Reach("before")
	return g
}

// TestOtherAddress: the relay sees a player at another address, as behind a NAT; or the player's address leads
// nowhere any more, as after a change of networks.
func TestOtherAddress(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprint("silent=", silent), func(t *testing.T) {
			t.Parallel()
			url, caller, _ := service(t)
			code := clienttest.Host(t, caller, 4, nil).Code
			gate, front := clienttest.GateAPI(t, url)
			g := connected(t, front, code)
			if silent {
				gate.MoveNetwork()
			} else {
				gate.Move()
			}
			g.Reach("after")
		})
	}
}

// TestTwoSessions: of two players with one allocation one ends, with the reason, and the other plays on.
func TestTwoSessions(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	front, code := clienttest.ShareAllocation(t, url), clienttest.Host(t, caller, 4, nil).Code
	first := connected(t, front, code)
	second := play(t, front, playerToken, code)
	lives := clienttest.OneEnds(t, "ended nobody -3", first, second)
	lives.Do("connect")
	lives.Await("connected")
	lives.Reach("after")
}

// TestFlappingNAT: a NAT that moves a player each second ends no session, also if datagrams are lost.
func TestFlappingNAT(t *testing.T) {
	t.Parallel()
	for _, loss := range []int{0, 20} { // %
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			t.Parallel()
			url, caller, _ := service(t)
			code := clienttest.Host(t, caller, 4, nil).Code
			gate, front := clienttest.GateAPI(t, url)
			g := connected(t, front, code)
			gate.Drop(func(netip.AddrPort, proto.Type) bool { return rand.IntN(100) < loss })
			for range 8 {
				time.Sleep(time.Second)
				gate.Move()
				g.Reach("after")
			}
		})
	}
}

// TestConnectAfterEnd: Connect has no success when the host or the player's own allocation has ended.
func TestConnectAfterEnd(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	h := clienttest.Host(t, caller, 4, nil)
	gate, front := clienttest.GateAPI(t, url)
	g := connected(t, front, h.Code)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	g.Expect("left peer")
	g.Do("connect")
	g.Expect("connect: 4")
	g.Do("send again")
	g.Expect("not sent")
	gate.EndAllocation()
	if line := g.Expect("ended nobody"); line != "1" && line != "4" {
		t.Errorf("it ends with %s", line)
	}
	g.Do("connect")
	if line := g.Expect("connect:"); line != "1" && line != "4" {
		t.Errorf("after the end Connect says %s", line)
	}
}

// TestLostLink: a link that the relay does not know any more is made again, not more than once a second; or
// the player is told after 5 s.
func TestLostLink(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		drop proto.Type // lost on its way besides
		ends bool       // the host's allocation
		want string
	}{
		{"again", proto.TypeDisconnect, false, ""},
		{"silence", proto.TypeConnectRequest, false, "refused peer -2"},
		{"refused", proto.TypeDisconnect, true, "refused peer 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url, caller, _ := service(t)
			h := clienttest.Host(t, caller, 4, nil)
			gate, front := clienttest.GateAPI(t, url)
			g := connected(t, front, h.Code)
			gate.DropTypes(proto.TypeDisconnect, c.drop)
			begin := time.Now()
			closeLink := (<-h.Peers).Close // The player does not learn of it.
			if c.ends {
				closeLink = h.Close
			}
			if err := closeLink(); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				g.Reach("after")
				return
			}
			stop := g.Repeat("send more")
			g.Expect(c.want)
			stop()
			if c.ends {
				return
			}
			if took := time.Since(begin); took < 5*time.Second {
				t.Errorf("after %v", took)
			}
			if n := gate.Requests(); n < 2 || n > 6 {
				t.Errorf("%d requests in 5 s", n)
			}
		})
	}
}

// TestFlood: a host that floods takes a bounded part of each turn, and of memory; the rest is counted.
func TestFlood(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	h := clienttest.Host(t, caller, 4, nil)
	g := connected(t, url, h.Code)
	stop := h.Flood()
	g.Do("flood 5000")
	line := g.Expect("flood")
	stop()
	var all, dropped, most, longest, memory int
	if _, err := fmt.Sscan(line, &all, &dropped, &most, &longest, &memory); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Logf("%d messages, %d dropped, at most %d in a turn of %d ms, %d bytes of memory", all, dropped, most, longest, memory)
	if all < 5000 || dropped == 0 || most > 256 || memory > 64<<10 {
		t.Errorf("%d messages, %d in a turn, %d bytes of memory", all, most, memory)
	}
	g.Reach("after")
}

// TestRefused: a host in C# that did not learn that its only player has left reads that from the relay.
func TestRefused(t *testing.T) {
	t.Parallel()
	url, _, player := service(t)
	gate, front := clienttest.GateAPI(t, url)
	g := play(t, front, hostToken, "host")
	gate.DropTypes(proto.TypeDisconnect)
	peer := clienttest.Join(t, player, g.Expect("code"), nil)
	defer clienttest.Say(peer, "hello")()
	g.Expect("joined")
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	stop := g.Repeat("send more")
	defer stop()
	g.Expect("refused peer 5")
}

// TestDisconnect: a host in C# ends the link with a player, which learns it.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	url, _, player := service(t)
	g := play(t, url, hostToken, "host")
	peer := clienttest.Join(t, player, g.Expect("code"), nil)
	defer clienttest.Say(peer, "hello")()
	g.Expect("joined")
	g.Do("disconnect")
	_ = peer.SetReadDeadline(time.Now().Add(clienttest.Within))
	if _, err := peer.Read(make([]byte, 2000)); err != io.EOF {
		t.Errorf("the player reads %v", err)
	}
	g.Do("send again")
	g.Expect("not sent")
}
