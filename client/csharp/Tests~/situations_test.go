package csharp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// game is a run of Play.cs.
type game struct {
	t     *testing.T
	in    io.Writer
	lines chan string
}

// play starts Play.cs as that player.
func play(t *testing.T, url, token, code string) *game {
	t.Helper()
	return start(t, compile(t, "Play.cs")(url, token, code))
}

func start(t *testing.T, cmd *exec.Cmd) *game {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &game{t: t, in: in, lines: make(chan string, 1000)}
	go func() {
		defer close(g.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			g.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		for range g.lines {
		}
		_ = cmd.Wait()
	})
	return g
}

func (g *game) do(command string) {
	g.t.Helper()
	if _, err := io.WriteString(g.in, command+"\n"); err != nil {
		g.t.Fatal(err)
	}
}

// expect waits for a line with that beginning, without any other before it but messages.
func (g *game) expect(want string) string {
	g.t.Helper()
	late := time.After(within)
	for {
		select {
		case line, ok := <-g.lines:
			rest, is := strings.CutPrefix(line, want)
			if is {
				return strings.TrimSpace(rest)
			}
			if !ok || !strings.HasPrefix(line, "message ") {
				g.t.Fatalf("it prints %q, want %q", line, want)
			}
		case <-late:
			g.t.Fatalf("it never prints %q", want)
		}
	}
}

// line returns the next line.
func (g *game) line() string {
	g.t.Helper()
	select {
	case line, ok := <-g.lines:
		if !ok {
			g.t.Fatal("it has ended")
		}
		return line
	case <-time.After(within):
		g.t.Fatal("it prints nothing")
		return ""
	}
}

// reach sends a text until it is answered, since datagrams may be lost. Those lines may come meanwhile.
func (g *game) reach(text string, besides ...string) {
	g.t.Helper()
	for late := time.After(within); ; {
		g.do("send " + text)
		again := time.After(200 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case line, ok := <-g.lines:
				if line == "message "+text {
					return
				}
				if !ok || !strings.HasPrefix(line, "message ") && !slices.Contains(besides, line) {
					g.t.Fatalf("it prints %q instead of an answer", line)
				}
			case <-again:
				waiting = false
			case <-late:
				g.t.Fatal("no answer")
			}
		}
	}
}

// gate carries datagrams between players and the relay, one address at the relay for each of a player's.
type gate struct {
	conn  *net.UDPConn
	relay *net.UDPAddr

	mu    sync.Mutex
	paths map[netip.AddrPort]*net.UDPConn
	drop  func(from netip.AddrPort, kind proto.Type) bool // to or from that player
	asked int                                             // CONNECT_REQUESTs
	id    proto.AllocationID                              // of the player
}

// newGate returns a gate to the relay of the API at url, and an API that leads through it.
func newGate(t *testing.T, url string) (*gate, string) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{conn: conn, paths: map[netip.AddrPort]*net.UDPConn{}, drop: func(netip.AddrPort, proto.Type) bool { return false }}
	t.Cleanup(func() {
		_ = conn.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, p := range g.paths {
			_ = p.Close()
		}
	})
	udp := regexp.MustCompile(`(\{"connectionType":"udp"[^}]*"port":)(\d+)`)
	front := rewrite(t, url, func(body []byte) []byte {
		return udp.ReplaceAllFunc(body, func(endpoint []byte) []byte {
			m := udp.FindSubmatch(endpoint)
			port, _ := strconv.Atoi(string(m[2]))
			g.mu.Lock()
			defer g.mu.Unlock()
			g.relay = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
			return fmt.Appendf(m[1], "%d", conn.LocalAddr().(*net.UDPAddr).Port)
		})
	})
	go g.carry()
	return g, front
}

func (g *gate) carry() {
	buf := make([]byte, 2048)
	for {
		n, from, err := g.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if path := g.path(from, buf[:n]); path != nil {
			_, _ = path.Write(buf[:n])
		}
	}
}

// path returns the way to the relay of a datagram, nil if it is dropped.
func (g *gate) path(from netip.AddrPort, pkt []byte) *net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	kind, err := proto.ParseType(pkt)
	if err != nil {
		return nil
	}
	if kind == proto.TypeConnectRequest {
		g.asked++
	}
	if m, err := proto.ParseConnectRequest(pkt); err == nil {
		g.id = m.ID
	}
	if g.drop(from, kind) {
		return nil
	}
	if p := g.paths[from]; p != nil {
		return p
	}
	p, err := net.DialUDP("udp", nil, g.relay)
	if err != nil {
		return nil
	}
	g.paths[from] = p
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := p.Read(buf)
			if err != nil {
				return
			}
			kind, err := proto.ParseType(buf[:n])
			g.mu.Lock()
			dropped := err != nil || g.drop(from, kind)
			g.mu.Unlock()
			if !dropped {
				_, _ = g.conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return p
}

// set drops from now on what the function says, and forgets what was asked.
func (g *gate) set(drop func(netip.AddrPort, proto.Type) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop, g.asked = drop, 0
}

func (g *gate) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// moveAll gives each player another address at the relay, and returns the old ones.
func (g *gate) moveAll() map[netip.AddrPort]*net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.paths
	for _, p := range old {
		_ = p.Close()
	}
	g.paths = map[netip.AddrPort]*net.UDPConn{}
	return old
}

// endAllocation ends the player's allocation without its knowledge.
func (g *gate) endAllocation() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.paths {
		_, _ = p.Write(proto.Close{ID: g.id}.Append(nil))
	}
}

// host runs a host in Go that sends back what it gets, and returns its join code and its peers.
func host(t *testing.T, caller *api.Client) (s *client.Session, code string, peers chan *client.Peer) {
	t.Helper()
	ticket, err := client.Reserve(t.Context(), caller, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	s = session(t, ticket)
	code, err = caller.JoinCode(t.Context(), ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	peers = make(chan *client.Peer, 10)
	go func() { // until the session ends
		for {
			peer, err := s.Accept(t.Context())
			if err != nil {
				return
			}
			peers <- peer
			go func() {
				buffer := make([]byte, 2000)
				for {
					n, err := peer.Read(buffer)
					if err != nil {
						return
					}
					_, _ = peer.Write(buffer[:n])
				}
			}()
		}
	}()
	return s, code, peers
}

// TestOtherAddress: the relay sees a player at another address, as behind a NAT; or the player's address leads
// nowhere any more, as after a change of networks.
func TestOtherAddress(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprint("silent=", silent), func(t *testing.T) {
			t.Parallel()
			url, caller, _ := service(t)
			_, code, _ := host(t, caller)
			gate, front := newGate(t, url)
			g := play(t, front, playerToken, code)
			g.do("connect")
			g.expect("connected")
			g.reach("before")
			old := gate.moveAll()
			if silent {
				gate.set(func(player netip.AddrPort, _ proto.Type) bool { return old[player] != nil })
			}
			g.reach("after")
		})
	}
}

// TestConnectAfterEnd: Connect has no success when the host or the player's own allocation has ended.
func TestConnectAfterEnd(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	h, code, _ := host(t, caller)
	gate, front := newGate(t, url)
	g := play(t, front, playerToken, code)
	g.do("connect")
	g.expect("connected")
	g.reach("before")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	g.expect("left peer")
	g.do("connect")
	g.expect("connect: 4")
	g.do("send again")
	g.expect("not sent")
	gate.endAllocation()
	if line := g.expect("ended nobody "); line != "1" && line != "4" {
		t.Errorf("it ends with %s", line)
	}
	g.do("connect")
	if line := g.expect("connect: "); line != "1" && line != "4" {
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
			h, code, peers := host(t, caller)
			gate, front := newGate(t, url)
			g := play(t, front, playerToken, code)
			g.do("connect")
			g.expect("connected")
			g.reach("before")
			gate.set(func(_ netip.AddrPort, kind proto.Type) bool { return kind == proto.TypeDisconnect || kind == c.drop })
			begin := time.Now()
			closeLink := (<-peers).Close // The player does not learn of it.
			if c.ends {
				closeLink = h.Close
			}
			if err := closeLink(); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				g.reach("after")
				return
			}
			stop := repeat(g, "send more")
			g.expect(c.want)
			stop()
			if c.ends {
				return
			}
			if took := time.Since(begin); took < 5*time.Second {
				t.Errorf("after %v", took)
			}
			if n := gate.requests(); n < 2 || n > 6 {
				t.Errorf("%d requests in 5 s", n)
			}
		})
	}
}

// TestFlood: a host that floods takes a bounded part of each turn, and of memory; the rest is counted.
func TestFlood(t *testing.T) {
	t.Parallel()
	url, caller, _ := service(t)
	_, code, peers := host(t, caller)
	g := play(t, url, playerToken, code)
	g.do("connect")
	g.expect("connected")
	g.reach("before")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	peer := <-peers
	var flood sync.WaitGroup
	flood.Go(func() {
		for ctx.Err() == nil {
			for range 24 { // 12,000 a second
				_, _ = peer.Write([]byte("flood"))
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	g.do("flood 5000")
	line := g.expect("flood ")
	cancel()
	flood.Wait()
	var all, dropped, most, longest, memory int
	if _, err := fmt.Sscan(line, &all, &dropped, &most, &longest, &memory); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	t.Logf("%d messages, %d dropped, at most %d in a turn of %d ms, %d bytes of memory", all, dropped, most, longest, memory)
	if all < 5000 || dropped == 0 || most > 256 || memory > 64<<10 {
		t.Errorf("%d messages, %d in a turn, %d bytes of memory", all, most, memory)
	}
	g.reach("after")
}

// TestRefused: a host in C# that did not learn that its only player has left reads that from the relay.
func TestRefused(t *testing.T) {
	t.Parallel()
	url, _, player := service(t)
	gate, front := newGate(t, url)
	g := play(t, front, hostToken, "host")
	gate.set(func(_ netip.AddrPort, kind proto.Type) bool { return kind == proto.TypeDisconnect })
	peer := join(t, player, g.expect("code "))
	say(t, peer)
	g.expect("joined")
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	stop := repeat(g, "send more")
	defer stop()
	g.expect("refused peer 5")
}

// join runs a player in Go, and returns the host.
func join(t *testing.T, player *api.Client, code string) *client.Peer {
	t.Helper()
	ticket, err := client.Redeem(t.Context(), player, code)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	peer, err := session(t, ticket).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// say sends to the host until the link ends.
func say(t *testing.T, peer *client.Peer) {
	go func() {
		for t.Context().Err() == nil {
			if _, err := peer.Write([]byte("hello")); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

// repeat gives a command again and again until stop is called.
func repeat(g *game, command string) (stop func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = io.WriteString(g.in, command+"\n")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// TestDisconnect: a host in C# ends the link with a player, which learns it.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	url, _, player := service(t)
	g := play(t, url, hostToken, "host")
	peer := join(t, player, g.expect("code "))
	say(t, peer)
	g.expect("joined")
	g.do("disconnect")
	_ = peer.SetReadDeadline(time.Now().Add(within))
	if _, err := peer.Read(make([]byte, 2000)); err != io.EOF {
		t.Errorf("the player reads %v", err)
	}
	g.do("send again")
	g.expect("not sent")
}
