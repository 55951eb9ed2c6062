//go:build lab && linux

package lab

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

var (
	matchesPerPair = flag.Int("transports.pairs", 8, "matches per transport pair, under attack")
	webSocketFlood = flag.Int("transports.websockets", 1000, "WebSockets that attackers hold at once")
)

var transportPairs = [][2]string{{"udp", "udp"}, {"dtls", "dtls"}, {"ws", "ws"}, {"dtls", "ws"}, {"udp", "dtls"}}

type clientMatch struct{ host, player *GameClient }

func (v clientMatch) clients() []*GameClient { return []*GameClient{v.host, v.player} }

func (l *lab) startMatches(each int) []clientMatch {
	l.Helper()
	return l.startMatchesOver(slices.Repeat(transportPairs, each), GameClientConfig{Rate: 30})
}

// startMatchesOver starts a match for each pair, with clients configured like
// the given one, and waits until all play.
func (l *lab) startMatchesOver(transports [][2]string, like GameClientConfig) (all []clientMatch) {
	l.Helper()
	calls := l.relay.API(l.net.Clients, 0)
	hostAt, playerAt := FirstPeer, FirstClient
	for _, pair := range transports {
		host, player, _, err := AllocateMatch(l.Context(), calls, api.AllocateRequest{MaxConnections: 2})
		if err != nil {
			l.Fatal(err)
		}
		cfg := like
		cfg.Transport, cfg.Namespace, cfg.Local, cfg.Relay, cfg.Player, cfg.Peers = pair[0], l.net.Peers, hostAt, RelayAddr, host, PeersOf(player)
		v := clientMatch{host: NewGameClient(cfg)}
		cfg.Transport, cfg.Namespace, cfg.Local, cfg.Player, cfg.Peers = pair[1], l.net.Clients, playerAt, player, PeersOf(host)
		v.player = NewGameClient(cfg)
		for _, x := range v.clients() {
			l.background(x.Run)
		}
		all = append(all, v)
		hostAt, playerAt = hostAt.Next(), playerAt.Next()
	}
	l.requireMatchTraffic(all, 30*time.Second)
	return all
}

func idOf(a api.Allocation) proto.AllocationID { return proto.AllocationID(a.AllocationIDBytes) }

func (l *lab) requireMatchTraffic(all []clientMatch, within time.Duration) {
	l.Helper()
	for _, v := range all {
		v.host.Mark()
		v.player.Mark()
	}
	begin := time.Now()
	for _, v := range all {
		for v.host.FirstArrival().IsZero() || v.player.FirstArrival().IsZero() {
			if time.Since(begin) > within {
				l.Fatalf("after %v a match does not play: %v; %v; log: %s", within, v.host, v.player, l.relay.Log())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// settleMatches pauses all games until nothing is in flight, or for 500 ms, and
// returns the sums by transport pair.
func settleMatches(all []clientMatch) map[string]GameClientCounts {
	stop := func(on bool) {
		for _, v := range all {
			v.host.Pause(on)
			v.player.Pause(on)
		}
	}
	stop(true)
	defer stop(false)
	sums := sumByTransport(all)
	for range 50 {
		time.Sleep(10 * time.Millisecond)
		lost := uint64(0)
		sums = sumByTransport(all)
		for _, c := range sums {
			lost += c.Sent - c.Received
		}
		if lost == 0 {
			break
		}
	}
	return sums
}

func sumByTransport(all []clientMatch) map[string]GameClientCounts {
	sums := map[string]GameClientCounts{}
	for _, v := range all {
		name := v.host.cfg.Transport + "-" + v.player.cfg.Transport
		s := sums[name]
		for _, x := range v.clients() {
			c := x.Counts()
			s.Sent += c.Sent
			s.Received += c.Received
			s.Duplicates += c.Duplicates
			s.Connections += c.Connections
			s.Fatal += c.Fatal
		}
		sums[name] = s
	}
	return sums
}

// requireLossGoal checks that no client was disconnected, and in the long form
// that at most 0.1 % of the datagrams were lost. It returns the sums of those
// sent and received.
func (l *lab) requireLossGoal(before, after map[string]GameClientCounts) (all Counts) {
	l.Helper()
	for name, c := range after {
		b := before[name]
		sent, lost := c.Sent-b.Sent, int64(c.Sent-b.Sent)-int64(c.Received-b.Received)
		l.Logf("%-9s sent %d, lost %d, new connections %d, fatal %d", name, sent, lost, c.Connections-b.Connections, c.Fatal)
		if sent == 0 || c.Fatal > 0 || c.Duplicates > 0 {
			l.Errorf("%s: sent %d, fatal ERRORs %d, duplicates %d", name, sent, c.Fatal, c.Duplicates)
		}
		if *long && (float64(lost) > 0.001*float64(sent) || c.Connections != b.Connections) {
			l.Errorf("%s lost %d of %d and made %d new connections, goals 0.1 %% and none", name, lost, sent, c.Connections-b.Connections)
		}
		all.Sent += sent
		all.Received += c.Received - b.Received
	}
	return all
}

func dtlsSessions(all []clientMatch, in Namespace) (at []netip.AddrPort, wire [][]byte) {
	for _, v := range all {
		for _, x := range v.clients() {
			if x.cfg.Transport == "dtls" && x.cfg.Namespace == in {
				at = append(at, x.LocalAddr())
				wire = append(wire, x.Captured()...)
			}
		}
	}
	return at, wire
}

// TestFloodHandshakes verifies that floods of ClientHellos, replayed handshakes
// and junk records do not disturb players on any transport, are not amplified,
// and take bounded memory.
func TestFloodHandshakes(t *testing.T) {
	l := newLab(t, nil)
	all := l.startMatches(*matchesPerPair)
	at, wire := dtlsSessions(all, l.net.Clients)
	if len(at) == 0 || len(wire) == 0 {
		t.Fatal("no sessions to attack")
	}
	honest := func() netip.AddrPort { return at[l.rng.IntN(len(at))] }
	forged := func(from func() netip.AddrPort, payload func() []byte) func(uint64) []byte {
		packets := make([][]byte, 4096)
		for i := range packets {
			packets[i] = AppendIPv4UDP(nil, from(), RelayAddr, payload())
		}
		return func(n uint64) []byte { return packets[n%uint64(len(packets))] }
	}
	hello := func() []byte { return ClientHello(HelloRandom(l.rng)) }
	captured := func() []byte { return wire[l.rng.IntN(len(wire))] }
	randomSource := func() netip.AddrPort { return RandomSource(l.rng) }
	received := l.counter(l.net.Clients, AttackerReplyRange())
	l.flood(50_000, 300*time.Millisecond, l.spoofedPackets(hello)) // warm-up: one-time allocations happen now
	for _, c := range []struct {
		name string
		next func(uint64) []byte
	}{
		{"hellos from random sources", l.spoofedPackets(hello)},
		{"hellos from one forged source", func() func(uint64) []byte {
			from := RandomSource(l.rng)
			return forged(func() netip.AddrPort { return from }, hello)
		}()},
		{"a replayed handshake, from random sources", l.spoofedPackets(captured)},
		{"a replayed handshake, from its own address", forged(honest, captured)},
		{"hellos from sources with sessions", forged(honest, hello)},
		{"junk records from sources with sessions", forged(honest, func() []byte { return JunkRecord(l.rng) })},
		{"junk records from random sources", forged(randomSource, func() []byte { return JunkRecord(l.rng) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := l.with(t)
			before, rss, answers := settleMatches(all), l.rss(), received.Received()
			o := l.flood(50_000, *floodDuration/2, c.next)
			time.Sleep(100 * time.Millisecond)
			h := received.Received()
			t.Logf("forged sources got %d datagrams, %d bytes; %.0f half open, %.0f established ever, RSS %+d KiB",
				h.Datagrams-answers.Datagrams, h.Bytes-answers.Bytes, l.metric("ferry_dtls_half_open"),
				l.metric(`ferry_dtls_events_total{event="established"}`), (l.rss()-rss)>>10)
			if uint64(h.Datagrams-answers.Datagrams) > o.Sent || h.Largest > 128 {
				t.Errorf("%d datagrams earned %d, the largest of %d bytes", o.Sent, h.Datagrams-answers.Datagrams, h.Largest)
			}
			if n := l.metric("ferry_dtls_half_open"); n > 4096 {
				t.Errorf("%v handshakes are half open", n)
			}
			if grown := l.rss() - rss; grown > 32*mebi {
				t.Errorf("RSS grew by %d MiB", grown/mebi)
			}
			got := l.requireLossGoal(before, settleMatches(all))
			l.requireMatchTraffic(all, 30*time.Second)
			recordAttack(t, attackResult{
				attack: "DTLS: " + c.name, rate: perSecond(o.PerSecond(), "datagrams"), honest: delivered(got),
				state: fmt.Sprintf("%.0f half open", l.metric("ferry_dtls_half_open")),
				slow:  l.slow,
			})
		})
	}
}

// TestFloodWebSockets verifies that slow WebSocket upgrades and WebSockets that
// never bind are closed and do not disturb players.
func TestFloodWebSockets(t *testing.T) {
	l := newLab(t, nil)
	all := l.startMatches(*matchesPerPair)
	before, rss := settleMatches(all), l.rss()
	slow := NewSlowClients(l.net.Clients, RelayAddr, netip.AddrFrom4([4]byte{198, 18, 210, 1}), *webSocketFlood/2, 4)
	l.background(slow.Run)
	ctx, cancel := context.WithTimeout(t.Context(), max(*floodDuration, 3*time.Second))
	defer cancel()
	var opened, refused, cut atomic.Int64
	const dialling = 50
	done := make(chan struct{}, dialling)
	for range dialling {
		go func() {
			defer func() { done <- struct{}{} }()
			l.holdWebSockets(ctx, *webSocketFlood/dialling, &opened, &refused, &cut)
		}()
	}
	peak, held := 0, 0.0
	for finished := 0; finished < dialling; {
		select {
		case <-done:
			finished++
		case <-time.After(200 * time.Millisecond):
			peak, held = max(peak, l.rss()), max(held, l.metric("ferry_websocket_connections"))
		}
	}
	t.Logf("%d WebSockets opened, %d refused, %d cut off, at most %.0f at once; %d slow callers, %d cut off; RSS at most %+d KiB",
		opened.Load(), refused.Load(), cut.Load(), held, slow.Open(), slow.Closed(), (peak-rss)>>10)
	if opened.Load() == 0 || held == 0 {
		t.Error("no WebSocket was opened")
	}
	// With few WebSockets, the memory of the slow clients would dominate.
	if each := (peak - rss) / max(int(held), *webSocketFlood/2); each > 96<<10 {
		t.Errorf("%d bytes for each WebSocket", each)
	}
	got := l.requireLossGoal(before, settleMatches(all))
	l.requireMatchTraffic(all, 30*time.Second)
	testkit.Eventually(t, "the attackers' WebSockets are gone", func() bool {
		return l.metric("ferry_websocket_connections") <= float64(4**matchesPerPair)
	})
	recordAttack(t, attackResult{
		attack: "WebSockets that never bind, and slow upgrades", rate: fmt.Sprintf("%d connections", opened.Load()),
		honest: delivered(got), state: fmt.Sprintf("%.0f WebSockets", held),
	})
}

func (l *lab) holdWebSockets(ctx context.Context, n int, opened, refused, cut *atomic.Int64) {
	client := &http.Client{Transport: &http.Transport{DialContext: l.net.Clients.Dial}}
	conns := make([]*ws.Conn, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.CloseNow()
			}
		}
	}()
	for ctx.Err() == nil {
		for i, c := range conns {
			if ctx.Err() != nil {
				return
			}
			if c == nil {
				c, _, err := ws.Dial(ctx, "ws://"+RelayAddr.String()+"/", &ws.DialOptions{HTTPClient: client})
				if err != nil {
					refused.Add(1)
					continue
				}
				opened.Add(1)
				conns[i] = c
				continue
			}
			if err := c.Write(ctx, ws.MessageBinary, []byte("junk")); err != nil {
				cut.Add(1)
				_ = c.CloseNow()
				conns[i] = nil
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// newDualLab is like newLab with a relay that listens on IPv4 and IPv6.
func newDualLab(t *testing.T) *lab {
	t.Helper()
	return newLab(t, func(c *RelayConfig) {
		if err := c.Network.AddIPv6(); err != nil {
			t.Fatal(err)
		}
		c.Flags = []string{"--udp", RelayAddr.String(), "--udp", RelayAddr6.String()}
	})
}

// TestFamilies verifies matches between hosts and players on IPv4 and IPv6.
func TestFamilies(t *testing.T) {
	l := newDualLab(t)
	hosts4, joiners4 := SideConfig{Do: l.net.Peers.Do, First: FirstPeer}, SideConfig{Do: l.net.Clients.Do, First: FirstClient}
	hosts6, joiners6 := hosts4, joiners4
	hosts6.First, hosts6.Via = FirstPeer6, RelayAddr6
	joiners6.First, joiners6.Via = FirstClient6, RelayAddr6
	for _, c := range []struct {
		name           string
		hosts, joiners SideConfig
	}{
		{"host on IPv6, player on IPv4", hosts6, joiners4},
		{"host on IPv4, player on IPv6", hosts4, joiners6},
		{"both on IPv6", hosts6, joiners6},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := l.with(t)
			cfg := l.players(10, 50)
			cfg.Hosts, cfg.Joiners, cfg.Payload = c.hosts, c.joiners, 1200
			cfg.Ports, cfg.RoamEvery = 2, 400*time.Millisecond
			f, codes := l.fleet(cfg)
			l.requireTraffic(f, 10*time.Second)
			time.Sleep(600 * time.Millisecond)
			testkit.Eventually(t, "a player has changed its port", func() bool { return f.Counts().Roams > 0 && len(f.Roams()) > 0 })
			got := f.Settle()
			t.Logf("%v; %d changes of port are over", got, len(f.Roams()))
			l.requireNoFailures(got)
			l.requireJoinCodes(codes[:1])
		})
	}
}

// TestFamilyLoss verifies that no datagram between the families is lost, and
// that the API advertises both addresses.
func TestFamilyLoss(t *testing.T) {
	l := newDualLab(t)
	cfg := l.players(20, 50)
	cfg.Hosts.First, cfg.Hosts.Via = FirstPeer6, RelayAddr6
	f, codes := l.fleet(cfg)
	before := f.SettleTo(0)
	time.Sleep(time.Second)
	got := f.SettleTo(before.Lost()).Since(before)
	t.Log(got)
	if got.Lost() != 0 || got.Sent == 0 {
		t.Errorf("%d of %d datagrams were lost", got.Lost(), got.Sent)
	}
	for i, want := range []bool{true, false} {
		if at := f.sides[i].sockets[0].group.Addr().Addr(); at.Is6() != want {
			t.Errorf("side %d is at %v", i, at)
		}
	}
	a, err := l.relay.API(l.net.Clients, 0).Join(t.Context(), codes[0])
	if err != nil {
		t.Fatal(err)
	}
	advertised := addresses(a)
	for _, want := range []netip.AddrPort{RelayAddr, RelayAddr6} {
		if !slices.Contains(advertised, want) {
			t.Errorf("the API advertises %v, not %v", advertised, want)
		}
	}
	if a.RelayServer.IPv4 != RelayAddr.Addr().String() {
		t.Errorf("relayServer is %+v", a.RelayServer)
	}
	l.requireNoFailures(f.Counts())
}

func addresses(a api.Allocation) (all []netip.AddrPort) {
	for _, e := range a.ServerEndpoints {
		if ip, err := netip.ParseAddr(e.Host); err == nil && e.ConnectionType == "udp" {
			all = append(all, netip.AddrPortFrom(ip, uint16(e.Port)))
		}
	}
	return all
}
