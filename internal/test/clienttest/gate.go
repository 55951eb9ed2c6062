package clienttest

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Gate carries datagrams between players and a relay, with one address at the relay for each of a
// player's. Its methods may be called from several goroutines.
type Gate struct {
	conn *net.UDPConn

	mu       sync.Mutex
	relay    *net.UDPAddr
	paths    map[netip.AddrPort]*net.UDPConn
	drop     func(player netip.AddrPort, kind proto.Type) bool
	requests int                // CONNECT_REQUESTs since Drop
	id       proto.AllocationID // of the player
	waiting  time.Time          // since when a player waits for an answer
	longest  time.Duration      // such a wait
}

// NewGate opens a gate at an IP address of this machine. It ends with the test.
func NewGate(t testing.TB, ip string) *Gate {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{conn: conn, paths: map[netip.AddrPort]*net.UDPConn{}}
	t.Cleanup(func() { _ = conn.Close(); g.Move() })
	go g.carry()
	return g
}

// GateAPI opens a gate to the relay of the API at url, and serves that API with the gate as the
// endpoint of UDP.
func GateAPI(t testing.TB, url string) (g *Gate, front string) {
	t.Helper()
	g = NewGate(t, "127.0.0.1")
	udp := regexp.MustCompile(`(\{"connectionType":"udp"[^}]*"port":)(\d+)`)
	return g, Rewrite(t, url, func(body []byte) []byte {
		m := udp.FindSubmatch(body)
		if m == nil {
			return body
		}
		port, _ := strconv.ParseUint(string(m[2]), 10, 16)
		g.SetRelay(netip.AddrPortFrom(g.Addr().Addr(), uint16(port)))
		return udp.ReplaceAll(body, strconv.AppendUint([]byte("${1}"), uint64(g.Addr().Port()), 10))
	})
}

// Addr returns the address of the gate for players.
func (g *Gate) Addr() netip.AddrPort { return g.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// SetRelay sets the address of the relay.
func (g *Gate) SetRelay(to netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.relay = net.UDPAddrFromAddrPort(to)
}

// Drop drops from now on the messages to or from a player for which drop holds (nil: none), and sets the
// count of [Gate.Requests] to 0. Calls of drop do not overlap.
func (g *Gate) Drop(drop func(player netip.AddrPort, kind proto.Type) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop, g.requests = drop, 0
}

// DropTypes drops messages of these types.
func (g *Gate) DropTypes(kinds ...proto.Type) {
	g.Drop(func(_ netip.AddrPort, kind proto.Type) bool { return slices.Contains(kinds, kind) })
}

// Requests returns the number of CONNECT_REQUESTs since Drop.
func (g *Gate) Requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests
}

// Move gives each player another address at the relay, as a NAT does, and returns the set of the
// players' own addresses so far.
func (g *Gate) Move() (players map[netip.AddrPort]*net.UDPConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	players = g.paths
	g.paths = map[netip.AddrPort]*net.UDPConn{}
	for _, path := range players {
		_ = path.Close()
	}
	return players
}

// MoveNetwork is Move, and drops from then on what comes from the players' addresses so far.
func (g *Gate) MoveNetwork() {
	old := g.Move()
	g.Drop(func(player netip.AddrPort, _ proto.Type) bool { return old[player] != nil })
}

// EndAllocation ends the player's allocation without its knowledge.
func (g *Gate) EndAllocation() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, path := range g.paths {
		_, _ = path.Write(proto.Close{ID: g.id}.Append(nil))
	}
}

// WasSlow reports whether an answer took more than a second, without which a player has no reason
// to find the relay silent.
func (g *Gate) WasSlow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.longest > time.Second || !g.waiting.IsZero() && time.Since(g.waiting) > time.Second
}

func (g *Gate) carry() {
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

// drops reports whether a datagram to or from a player is dropped. g.mu is held.
func (g *Gate) drops(player netip.AddrPort, pkt []byte) bool {
	kind, err := proto.ParseType(pkt)
	return err != nil || g.drop != nil && g.drop(player, kind)
}

// path returns the socket to the relay for a player's datagram, nil if it is dropped.
func (g *Gate) path(player netip.AddrPort, pkt []byte) *net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m, err := proto.ParseConnectRequest(pkt); err == nil {
		g.requests++
		g.id = m.ID
	}
	if g.drops(player, pkt) {
		return nil
	}
	if g.waiting.IsZero() {
		g.waiting = time.Now()
	}
	if path := g.paths[player]; path != nil {
		return path
	}
	path, err := net.DialUDP("udp", &net.UDPAddr{IP: g.relay.IP}, g.relay)
	if err != nil {
		return nil
	}
	g.paths[player] = path
	go g.carryBack(player, path)
	return path
}

// carryBack carries what the relay sends, until the player has another path.
func (g *Gate) carryBack(player netip.AddrPort, path *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, err := path.Read(buf)
		g.mu.Lock()
		current := g.paths[player] == path
		dropped := err != nil || g.drops(player, buf[:n])
		if !dropped {
			if !g.waiting.IsZero() {
				g.longest = max(g.longest, time.Since(g.waiting))
			}
			g.waiting = time.Time{}
		}
		g.mu.Unlock()
		if err != nil && !current {
			return
		}
		if !dropped { // An error of the current path is ICMP: there is no relay.
			_, _ = g.conn.WriteToUDPAddrPort(buf[:n], player)
		}
	}
}
