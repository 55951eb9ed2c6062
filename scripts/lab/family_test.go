//go:build lab && linux

package lab

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// newDualLab is newLab with both families: the relay listens on two addresses.
func newDualLab(t *testing.T) *lab {
	t.Helper()
	return newLab(t, func(c *RelayConfig) {
		if err := c.Network.AddIPv6(); err != nil {
			t.Fatal(err)
		}
		c.Flags = []string{"--udp", RelayAddr.String(), "--udp", RelayAddr6.String()}
	})
}

// TestFamilies: host and player of a match come by IPv4 or IPv6, as each of
// them can, and get every datagram of each other.
func TestFamilies(t *testing.T) {
	l := newDualLab(t)
	hosts4, joiners4 := Place{Do: l.net.Peers.Do, First: FirstPeer}, Place{Do: l.net.Clients.Do, First: FirstClient}
	hosts6, joiners6 := hosts4, joiners4
	hosts6.First, hosts6.Via = FirstPeer6, RelayAddr6
	joiners6.First, joiners6.Via = FirstClient6, RelayAddr6
	for _, c := range []struct {
		name           string
		hosts, joiners Place
	}{
		{"host on IPv6, player on IPv4", hosts6, joiners4},
		{"host on IPv4, player on IPv6", hosts4, joiners6},
		{"both on IPv6", hosts6, joiners6},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &lab{T: t, net: l.net, relay: l.relay, rng: l.rng}
			cfg := l.players(10, 50)
			cfg.Hosts, cfg.Joiners, cfg.Payload = c.hosts, c.joiners, 1200
			cfg.Ports, cfg.RoamEvery = 2, 400*time.Millisecond
			f, codes := l.fleet(cfg)
			l.alive(f, 10*time.Second)
			time.Sleep(600 * time.Millisecond)
			testkit.Eventually(t, "a player has changed its port", func() bool { return f.Counts().Roams > 0 && len(f.Roams()) > 0 })
			got := f.Settle()
			t.Logf("%v; %d changes of port are over", got, len(f.Roams()))
			l.unharmed(got)
			l.joinable(codes[:1])
		})
	}
}

// TestFamilyLoss: without changes of port no datagram between the families is
// lost, and the API returns both addresses to players.
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
	told := addresses(a)
	for _, want := range []netip.AddrPort{RelayAddr, RelayAddr6} {
		if !slices.Contains(told, want) {
			t.Errorf("players are told %v, not %v", told, want)
		}
	}
	if a.RelayServer.IPv4 != RelayAddr.Addr().String() {
		t.Errorf("relayServer is %+v", a.RelayServer)
	}
	l.unharmed(f.Counts())
}

// addresses returns the addresses that the API gives players for plain datagrams.
func addresses(a api.Allocation) (all []netip.AddrPort) {
	for _, e := range a.ServerEndpoints {
		if ip, err := netip.ParseAddr(e.Host); err == nil && e.ConnectionType == "udp" {
			all = append(all, netip.AddrPortFrom(ip, uint16(e.Port)))
		}
	}
	return all
}
